package program

import (
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// routes gives each route of the configuration its handler.
func routes(cfg *config.Config, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) ([]consumer.Route, error) {
	env := handler.Env{Service: cfg.Service, Conn: nc, JetStream: js, Own: cfg.OwnSubjects(), Logger: log}
	var list []consumer.Route
	for _, rc := range cfg.Routes {
		rt := rc.Route
		if err := rc.Handler.Build(env, &rt); err != nil {
			return nil, &consumer.SetupError{Route: rt.Name, Err: fmt.Errorf("handler: %w", err)}
		}
		list = append(list, rt)
	}
	return list, nil
}
