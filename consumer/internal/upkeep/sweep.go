package upkeep

import (
	"context"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// sweepFirst is how long after the start is swept first: the other instances are known by then.
const (
	sweepFirst = 3 * time.Second
	sweepEvery = time.Hour
)

// Sweep removes, until ctx is done, what nobody waits for: the records of settled messages, bodies without an entry, what
// processes left that ended.
func (u *Upkeep) Sweep(ctx context.Context) {
	for wait := sweepFirst; ; wait = sweepEvery {
		if transient.Pause(ctx, wait); ctx.Err() != nil {
			return
		}
		u.cfg.SweepRecords(ctx)
		u.sweepBodies(ctx)
		if l := u.cfg.Stores.Lives.Load(); l != nil {
			l.Housekeep(ctx)
		}
	}
}

// sweepBodies removes them if it is for this instance to do that.
func (u *Upkeep) sweepBodies(ctx context.Context) {
	if !u.first() {
		return
	}
	if n, err := u.cfg.Stores.Dead.Sweep(ctx); err == nil && n > 0 {
		u.cfg.Log.Info("removed stored bodies whose dead letters are gone", "count", n)
	}
}

// first tells whether this instance does what one of all does.
func (u *Upkeep) first() bool {
	l := u.cfg.Stores.Lives.Load()
	return l == nil || l.First()
}
