package engine

import (
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/reports"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/fingerprint"
	"github.com/relaymq/relay/internal/subject"
)

func newEvents(nc *nats.Conn, cfg Config) reports.Reports {
	return reports.Reports{Bus: events.NewBus(cfg.Service, cfg.Instance, fingerprint.Of, func(e event.Event) error { return events.Publish(nc, e) })}
}

// handlesEvents tells whether messages of the route are events of the service: those about it are not published.
func (r Spec) handlesEvents(service string) bool {
	return slices.ContainsFunc(r.Subjects, func(p string) bool {
		return subject.Overlaps(p, event.Prefix(service)+".>")
	})
}
