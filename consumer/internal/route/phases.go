package route

import (
	"context"
	"sync/atomic"
	"time"
)

// phases are how far a Relay is: it has begun, it serves, all its durables were tried. How long its drain may take belongs to the last of them.
type phases struct {
	began    atomic.Pointer[time.Time] // when Run began; nil: it was not called
	Serving  atomic.Bool               // messages are pulled, and routes may change
	Opened   chan struct{}             // closed when the durable of each route was opened, or tried once
	drainFor atomic.Int64              // Config.Drain, as it is now

	// Set before it serves.
	Ends context.Context // of the start: when it is done, relay is to end
	Work context.Context // of what outlives that until the drain is over
	Slow context.Context // of the slow paths, which end with the drain
}

func NewPhases(drain time.Duration) *phases {
	p := &phases{Opened: make(chan struct{})}
	p.SetDrain(drain)
	return p
}

// begin notes when Run began. It returns false when that was before.
func (p *phases) Begin(now time.Time) bool { return p.began.CompareAndSwap(nil, &now) }

// since is when Run began, or the zero time.
func (p *phases) Since() time.Time {
	if t := p.began.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (p *phases) SetDrain(d time.Duration) { p.drainFor.Store(int64(d)) }

func (p *phases) DrainTime() time.Duration { return time.Duration(p.drainFor.Load()) }
