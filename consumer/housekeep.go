package consumer

import (
	"context"
	"encoding/json"
	"time"

	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/internal/away"
)

// tidyFirst is how long after the start that is done first: the other instances are known by then.
const (
	tidyFirst = 3 * time.Second
	tidyEvery = time.Hour
)

// housekeep looks after what nobody waits for: the records of settled messages, bodies without an entry.
func (r *Relay) housekeep(ctx context.Context) {
	for wait := tidyFirst; ; wait = tidyEvery {
		if away.Pause(ctx, wait); ctx.Err() != nil {
			return
		}
		r.tidy(ctx)
		if l := r.stores.Lives.Load(); l != nil {
			l.Housekeep(ctx)
		}
	}
}

// tidy sweeps what it is for this instance to sweep.
func (r *Relay) tidy(ctx context.Context) {
	for _, s := range r.openSources() {
		if s.sweeps(ctx) {
			s.sweep(ctx)
		}
	}
	if r.sweeps() {
		if n, err := r.stores.Dead.Sweep(ctx); err == nil && n > 0 {
			r.log.Info("removed stored bodies whose dead letters are gone", "count", n)
		}
	}
}

// sweeps tells whether this instance sweeps what all share.
func (r *Relay) sweeps() bool {
	l := r.stores.Lives.Load()
	return l == nil || l.First()
}

// sweeps tells whether this instance sweeps the records of the durable: the first one does of those that read it, for another one may not have its
// route.
func (s *source) sweeps(ctx context.Context) bool {
	l := s.relay.stores.Lives.Load()
	if l == nil {
		return true
	}
	question, err := json.Marshal(takeover.Question{Stream: s.stream, Durable: s.durable, Created: s.identity.ConsumerCreated, Reads: true})
	return err != nil || !l.AnyBefore(ctx, question, takeover.ReadsIt)
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
			n, err := r.stores.Retries.Unstick(ctx)
			if n > 0 {
				r.log.Warn("schedules that were stuck in the retry stream are published again", "count", n)
			}
			switch {
			case err == nil:
				last = time.Now()
				r.trouble.CompareAndSwap(trouble, 0)
			case ctx.Err() == nil:
				r.log.Debug("cannot search the retry stream for stuck schedules; retrying", "error", err)
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
