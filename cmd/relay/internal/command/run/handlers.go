package run

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// makeRoutes gives each route of the configuration that is wanted its handler.
func makeRoutes(cfg *config.Config, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger, wanted func(name string) bool) ([]consumer.Route, error) {
	env := handler.Env{Service: cfg.Service, Conn: nc, JetStream: js, Own: cfg.OwnSubjects(), Listeners: listeners(cfg, nc), Logger: log}
	var list []consumer.Route
	for _, rc := range cfg.Routes {
		if !wanted(rc.Name) {
			continue
		}
		rt := rc.Route
		if err := rc.Handler.Build(env, &rt); err != nil {
			return nil, &consumer.SetupError{Route: rt.Name, Err: fmt.Errorf("handler: %w", err)}
		}
		if rc.Fallback != nil {
			if err := buildFallback(rc, env, &rt); err != nil {
				return nil, &consumer.SetupError{Route: rt.Name, Err: fmt.Errorf("fallback.handler: %w", err)}
			}
		}
		list = append(list, rt)
	}
	return list, nil
}

// buildFallback gives a route the fallback that the file names. Its handler is made for a route with its concurrency and timeout.
func buildFallback(rc config.Route, env handler.Env, rt *consumer.Route) error {
	f := rc.Fallback.Fallback
	like := rc.Route
	like.Concurrency, like.Timeout = f.Concurrency, f.Timeout
	if err := rc.Fallback.Handler.Build(env, &like); err != nil {
		return err
	}
	if like.Handler == nil {
		return fmt.Errorf("%s makes a handler for each key, but a fallback has one handler for all keys: use another kind, or per: pool", rc.Fallback.Handler)
	}
	f.Handler, f.Concurrency = like.Handler, like.Concurrency // a worker has no more than its processes
	rt.Fallback = &f
	return nil
}

// listeners are the addresses of relay's own listeners, and of the NATS servers that it knows of at the time.
func listeners(cfg *config.Config, nc *nats.Conn) func() []string {
	own := []string{cfg.Admin.Listen, cfg.Admin.Probes, cfg.NATS.Embedded.Listen, cfg.NATS.Embedded.Monitor}
	return func() []string {
		all := slices.Clone(own)
		if nc == nil {
			return all
		}
		for _, server := range nc.Servers() {
			if u, err := url.Parse(server); err == nil {
				all = append(all, u.Host)
			}
		}
		return all
	}
}
