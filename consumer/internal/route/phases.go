package route

import (
	"context"
	"sync/atomic"
	"time"
)

// Phases are how far an instance is: it has begun, it serves, all its durables were tried. How long its drain may take belongs to the last of them.
type Phases struct {
	began    atomic.Pointer[time.Time] // when Run began; nil: it was not called
	Serving  atomic.Bool               // messages are pulled, and routes may change
	Opened   chan struct{}             // closed when the durable of each route was opened, or tried once
	drainFor atomic.Int64              // Config.Drain, as it is now

	// Set before it serves.
	Ends context.Context // of the start: when it is done, relay is to end
	Work context.Context // of what outlives that until the drain is over
	Slow context.Context // of the slow paths, which end with the drain
}

// NewPhases are those of an instance that has not begun, whose drain may take so long.
func NewPhases(drain time.Duration) *Phases {
	p := &Phases{Opened: make(chan struct{})}
	p.SetDrain(drain)
	return p
}

// Begin notes when Run began. It returns false when that was before.
func (p *Phases) Begin(now time.Time) bool { return p.began.CompareAndSwap(nil, &now) }

// Since is when Run began, or the zero time.
func (p *Phases) Since() time.Time {
	if t := p.began.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// SetDrain changes how long the drain may take.
func (p *Phases) SetDrain(d time.Duration) { p.drainFor.Store(int64(d)) }

// DrainTime is how long the drain may take.
func (p *Phases) DrainTime() time.Duration { return time.Duration(p.drainFor.Load()) }
