package engine

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// askTimeout bounds one question to the server. A time-out proves nothing.
const askTimeout = settle.Timeout

// settling is how the messages of the route are settled.
func (rt *Route) settling() settle.Config {
	r := rt.Engine
	return settle.Config{
		Log: rt.log, Route: rt.name(), Instance: r.Config.Instance, LettersPrefix: r.Stores.DeadPrefix(rt.Spec.DeadPrefix),
		Ordered: rt.Spec.Order == supervisor.OrderKey, Guarded: rt.Guarded, Stores: r.Stores, Solo: r.solo,
		Count: &rt.Count.RouteCount, Tally: &rt.Count.tally, Troubles: rt.Standstill.troubles, CalledBackFrom: r.Config.CalledBackFrom,
		Policy: func() settle.Policy {
			c, parked := rt.Now().Retry, r.Config.Parked
			return settle.Policy{
				ParkAfter: c.ParkAfter, MaxCrashes: c.MaxCrashes,
				Room: retry.Room{Messages: min(c.ParkMax, parked.Messages), Bytes: parked.Bytes},
			}
		},
		NotStored: func() { r.Upkeep.NotStored() }, More: rt.more, Gone: rt.Group.Gone, Dead: func(e dlq.Entry) { r.events.Dead(rt.name(), e) },
	}
}

// tryHeld tries again to store the outcomes of held messages, until ctx is done.
func (l *routeList) tryHeld(ctx context.Context) {
	tick := beat.NewTicker(unstored.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			tick.Next()
			for _, rt := range l.All() {
				rt.Standstill.troubles.Expire(now)
				rt.Path.Retry(now)
			}
		}
	}
}
