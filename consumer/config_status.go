package consumer

import (
	"time"

	"github.com/relaymq/relay/event"
)

// TellConfig makes the status say which configuration this is.
func (r *Relay) TellConfig(c ConfigStatus) { r.engine.TellConfig(c) }

// Report publishes an event of the program around the Relay, in the same way as the events of the Relay itself.
func (r *Relay) Report(kind event.Kind, d event.Data) { r.engine.Report(kind, d) }

// SetDrain changes [Config.Drain] of a Relay that may be running; zero means 30s.
func (r *Relay) SetDrain(d time.Duration) { r.engine.SetDrain(Config{Drain: d}.withDefaults().Drain) }
