package engine

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/reports"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/fingerprint"
)

// TellConfig makes the status say which configuration this is.
func (r *Engine) TellConfig(c control.ConfigStatus) { r.ConfigStatus.Store(&c) }

// Report publishes an event of the program around the engine.
func (r *Engine) Report(kind event.Kind, d event.Data) { r.Reports.Report(kind, d) }

// Events returns the events that this instance publishes.
func (r *Engine) Events() <-chan event.Event { return r.Reports.Events() }

// SetDrain changes how long a drain may take.
func (r *Engine) SetDrain(d time.Duration) { r.Phases.SetDrain(d) }

// newEvents publishes events over a connection.
func newEvents(nc *nats.Conn, cfg route.Config) reports.Reports {
	return reports.Reports{Bus: events.NewBus(cfg.Service, cfg.Instance, fingerprint.Of, func(e event.Event) error { return events.Publish(nc, e) })}
}
