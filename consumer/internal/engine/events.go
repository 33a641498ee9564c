package engine

import (
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/reports"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/fingerprint"
)

func newEvents(nc *nats.Conn, cfg route.Config) reports.Reports {
	return reports.Reports{Bus: events.NewBus(cfg.Service, cfg.Instance, fingerprint.Of, func(e event.Event) error { return events.Publish(nc, e) })}
}
