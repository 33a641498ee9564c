package consumer

import (
	"cmp"
	"time"

	"github.com/relaymq/relay/event"
)

// Events says whether events are also stored. They are published in any case: see package event.
type Events struct {
	// Store keeps them in the stream <SERVICE>_EVENTS.
	Store bool `koanf:"store"`
	// MaxAge is how long they are kept there. Zero means 168h.
	MaxAge time.Duration `koanf:"max_age"`
	// MaxBytes and MaxMsgs bound them there: the oldest go. Zero means 64 MiB, which the server keeps free for them, and 100,000.
	MaxBytes Bytes `koanf:"max_bytes"`
	MaxMsgs  int   `koanf:"max_msgs"`
}

// WithDefaults fills the zero fields.
func (e Events) WithDefaults() Events {
	e.MaxAge = cmp.Or(e.MaxAge, 168*time.Hour)
	e.MaxBytes = cmp.Or(e.MaxBytes, 64<<20)
	e.MaxMsgs = cmp.Or(e.MaxMsgs, 100_000)
	return e
}

// Events returns the events that this instance publishes; those of a minute that are alike are gathered into one. All calls
// return the same channel. It holds 256 events, and drops further ones while nobody receives. It is closed when Run returns.
func (r *Relay) Events() <-chan event.Event { return r.engine.Events() }

// Report publishes an event of the program around the Relay, in the same way as the events of the Relay itself.
func (r *Relay) Report(kind event.Kind, d event.Data) { r.engine.Report(kind, d) }
