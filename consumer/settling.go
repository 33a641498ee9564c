package consumer

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
func (rt *route) settling() settle.Config {
	r := rt.relay
	return settle.Config{
		Log: rt.log, Route: rt.name(), Instance: r.cfg.Instance, LettersPrefix: r.stores.DeadPrefix(rt.cfg.DeadLetter.Prefix),
		Ordered: rt.cfg.Order == supervisor.OrderKey, Guarded: rt.guarded, Stores: r.stores, Solo: r.solo,
		Count: &rt.count.RouteCount, Tally: &rt.count.tally, Troubles: rt.standstill.troubles, CalledBackFrom: r.cfg.asideMostPending,
		Policy: func() settle.Policy {
			c, parked := rt.now().Retry, r.cfg.Parked
			return settle.Policy{
				ParkAfter: c.ParkAfter, MaxCrashes: c.MaxCrashes,
				Room: retry.Room{Messages: min(c.ParkMax, parked.MaxMsgs), Bytes: int64(parked.MaxBytes)},
			}
		},
		NotStored: func() { r.upkeep.NotStored() }, More: rt.more, Gone: rt.group.Gone, Dead: func(e dlq.Entry) { r.events.Dead(rt.name(), e) },
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
			for _, rt := range l.all() {
				rt.standstill.troubles.Expire(now)
				rt.path.Retry(now)
			}
		}
	}
}
