package main

import (
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/discard"
	"github.com/relaymq/relay/consumer/handler/exec"
	"github.com/relaymq/relay/consumer/handler/forward"
	"github.com/relaymq/relay/consumer/handler/http"
)

// routes gives each route of the configuration its handler.
func routes(cfg *config.Config, js jetstream.JetStream) ([]consumer.Route, error) {
	var list []consumer.Route
	for _, rc := range cfg.Routes {
		rt := rc.Route
		h, err := handler(cfg, rc, js)
		if err != nil {
			return nil, &consumer.SetupError{Route: rt.Name, Err: fmt.Errorf("handler: %w", err)}
		}
		rt.Handler = h
		list = append(list, rt)
	}
	return list, nil
}

func handler(cfg *config.Config, rc config.Route, js jetstream.JetStream) (consumer.Handler, error) {
	switch h := rc.Handler; {
	case h.HTTP != nil:
		return http.New(*h.HTTP, rc.WithDefaults().Concurrency)
	case h.Exec != nil:
		return exec.New(*h.Exec)
	case h.Forward != nil:
		return forward.New(*h.Forward, js, cfg.OwnSubjects()...)
	default:
		return discard.New(), nil
	}
}
