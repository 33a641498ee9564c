package consumer

import (
	"cmp"
	"time"
)

// Parked bounds what waits in the retry stream, of all routes and instances. Relay itself looks at the bounds before it parks a message:
// the server can only remove from a stream with schedules, and not refuse. A message that finds no room waits in its durable. Zero of
// any means the default.
type Parked struct {
	// MaxBytes is 10 GiB unless it is set, as the server counts: a KiB for each of MaxMsgs.
	MaxBytes Bytes `koanf:"max_bytes"`
	// MaxMsgs is 10,000,000 unless it is set. [Retry].ParkMax is the bound of a route.
	MaxMsgs int `koanf:"max_msgs"`
	// MaxAge is how long a message may wait before relay warns. Nothing is removed. It is 720h unless it is set.
	MaxAge time.Duration `koanf:"max_age"`
}

// WithDefaults fills the zero fields.
func (p Parked) WithDefaults() Parked {
	p.MaxBytes = cmp.Or(p.MaxBytes, 10<<30)
	p.MaxMsgs = cmp.Or(p.MaxMsgs, 10_000_000)
	p.MaxAge = cmp.Or(p.MaxAge, 720*time.Hour)
	return p
}
