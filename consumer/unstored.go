package consumer

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/retry"
)

// hold keeps the message until then, to try again. While its route drains, or when another instance may have it, it is let go:
// JetStream delivers it again.
func (m *message) hold(at time.Time, why error, try func()) {
	if m.delivery.Fenced() || m.source.pulls.IsDraining() || !m.route.held.Add(at, why, try) {
		m.delivery.Release()
	}
}

// tryHeld tries again to store the outcomes of held messages, until ctx is done.
func (r *Relay) tryHeld(ctx context.Context) {
	tick := beat.NewTicker(unstored.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			tick.Next()
			for _, rt := range r.routes.all() {
				rt.held.Say(now, rt.log)
				rt.troubles.Expire(now)
				for _, try := range rt.held.Take(now) {
					rt.slow.Go(try)
				}
			}
		}
	}
}

// endHeld tries all of them a last time: what cannot be stored then is let go.
func (rt *route) endHeld() {
	for _, try := range rt.held.End() {
		rt.slow.Go(try)
	}
}

// parkUnrecorded parks a message that failed because its attempt cannot be recorded: a parked one carries its attempts in its
// headers. It returns false when the message must stay here.
func (m *message) parkUnrecorded(rec *retry.Record, why error) bool {
	rt := m.route
	if !m.mayPark() || !rt.aside.MayTry(time.Now()) || !m.parkFailed(rec) {
		return false
	}
	rt.aside.Works()
	rt.held.Parked(why)
	return true
}
