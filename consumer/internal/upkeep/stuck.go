package upkeep

import (
	"context"
	"sync/atomic"
	"time"
)

// After trouble with storing something, schedules are looked for that got stuck, once there was none for unstickCalm: what
// was due meanwhile is late enough by then to be told from what is about to fire.
const (
	unstickEvery = time.Hour
	unstickCalm  = 15 * time.Second
)

// stuck says whether schedules of the retry stream may be stuck.
type stuck struct {
	failed atomic.Int64 // when something could not be stored, in Unix nanoseconds; 0: not since the last search
	looked time.Time    // when they were last searched; WatchStuck alone touches it
}

// NotStored notes that something could not be stored: schedules that were due at that time may be stuck.
func (u *Upkeep) NotStored() { u.stuck.failed.Store(time.Now().UnixNano()) }

// due tells whether they are to be searched now: at the start, hourly by the first instance, and after trouble.
func (s *stuck) due(now time.Time, failed int64, first func() bool) bool {
	return now.Sub(s.looked) >= unstickEvery && (s.looked.IsZero() || first()) || failed != 0 && now.Sub(time.Unix(0, failed)) >= unstickCalm
}

// found notes that they were searched. Trouble since the search began needs another one.
func (s *stuck) found(now time.Time, failed int64) {
	s.looked = now
	s.failed.CompareAndSwap(failed, 0)
}

// WatchStuck frees what is stuck in the retry stream, until ctx is done.
func (u *Upkeep) WatchStuck(ctx context.Context) {
	tick := time.NewTicker(unstickCalm / 5)
	defer tick.Stop()
	for {
		if failed := u.stuck.failed.Load(); u.stuck.due(time.Now(), failed, u.first) {
			n, err := u.cfg.Stores.Retries.Unstick(ctx)
			if n > 0 {
				u.cfg.Log.Warn("schedules that were stuck in the retry stream are published again", "count", n)
			}
			switch {
			case err == nil:
				u.stuck.found(time.Now(), failed)
			case ctx.Err() == nil:
				u.cfg.Log.Debug("cannot search the retry stream for stuck schedules; retrying", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
