package route

import (
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// settling is how the messages of the route are settled.
func (rt *Route) settling() settle.Config {
	r := rt.Home
	return settle.Config{
		Log: rt.Log, Route: rt.Name(), Instance: r.Config.Instance, LettersPrefix: r.Stores.DeadPrefix(rt.Spec.DeadPrefix),
		Ordered: rt.Spec.Order == supervisor.OrderKey, Guarded: rt.Guarded, Stores: r.Stores, Solo: r.Solo,
		Count: &rt.Count.RouteCount, Tally: &rt.Count.Tally, Troubles: rt.Standstill.Troubles, CalledBackFrom: r.Config.CalledBackFrom,
		Policy: func() settle.Policy {
			c, parked := rt.Now().Retry, r.Config.Parked
			return settle.Policy{
				ParkAfter: c.ParkAfter, MaxCrashes: c.MaxCrashes,
				Room: retry.Room{Messages: min(c.ParkMax, parked.Messages), Bytes: parked.Bytes},
			}
		},
		NotStored: func() { r.Upkeep.NotStored() }, More: rt.more, Gone: rt.Group.Gone, Dead: func(e dlq.Entry) { r.Reports.Dead(rt.Name(), e) },
	}
}
