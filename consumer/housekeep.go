package consumer

import (
	"context"
	"time"
)

// housekeep looks after what nobody waits for: the records of settled messages, bodies without an entry.
func (r *Relay) housekeep(ctx context.Context) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		for _, s := range r.openSources() {
			s.sweep(ctx)
		}
		if r.sweeps() {
			if n, err := r.dead.Sweep(ctx); err == nil && n > 0 {
				r.log.Info("removed bodies of dead letters that are gone", "count", n)
			}
		}
		if l := r.lives.Load(); l != nil {
			l.Housekeep(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweeps tells whether this instance sweeps what all share. The records of a durable are for all who read it: another instance may not have its
// route.
func (r *Relay) sweeps() bool {
	l := r.lives.Load()
	return l == nil || l.First()
}

// After trouble with storing something, schedules are looked for that got stuck, once there was none for unstickCalm: what
// was due meanwhile is late enough by then to be told from what is about to fire.
const (
	unstickEvery = time.Hour
	unstickCalm  = 15 * time.Second
)

// unstick frees what is stuck in the retry stream: at the start, hourly, and after trouble.
func (r *Relay) unstick(ctx context.Context) {
	tick := time.NewTicker(unstickCalm / 5)
	defer tick.Stop()
	var last time.Time
	for {
		trouble := r.trouble.Load()
		if time.Since(last) >= unstickEvery && (last.IsZero() || r.sweeps()) || trouble != 0 && time.Since(time.Unix(0, trouble)) >= unstickCalm {
			n, err := r.retries.Unstick(ctx)
			if n > 0 {
				r.log.Warn("schedules that were stuck in the retry stream are published again", "count", n)
			}
			switch {
			case err == nil:
				last = time.Now()
				r.trouble.CompareAndSwap(trouble, 0)
			case ctx.Err() == nil:
				r.log.Debug("the retry stream could not be searched for stuck schedules; tried again soon", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// notStored notes that something could not be stored: schedules that were due at that time may be stuck.
func (r *Relay) notStored() { r.trouble.Store(time.Now().UnixNano()) }
