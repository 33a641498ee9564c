package route

import (
	"errors"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/supervise"
)

// Snapshot is what a scrape sees of the route.
func (rt *Route) Snapshot() metrics.Route {
	s := metrics.Route{
		Name: rt.Name(), Count: &rt.Count.RouteCount, Group: rt.Group.Status(), Holds: rt.Memory.Holds(), HeldMost: rt.Memory.Most().Bytes,
		CatchUp: rt.CatchUp().Left(), Limits: rt.Spec.bounding().Names(), Backlog: rt.Backlog(),
	}
	s.Fallback, _ = rt.Group.Fallback()
	s.State, _, _ = rt.Standstill.Condition(s.Group)
	if h := rt.Holder(); h != nil {
		s.Here = &h.Here
	}
	if at, known := rt.Oldest(); known {
		s.Oldest = &at
	}
	if rt.Spec.IsCopy() {
		return s
	}
	if n := rt.Home.Behind(s.Name); n >= 0 {
		s.Behind = new(int(n))
	}
	if n, known := rt.Home.Upkeep.Dead(s.Name); known {
		s.Dead = &n
	}
	return s
}

// Counters are those of a route.
type Counters struct {
	metrics.RouteCount
	Tally tally.RouteCount
}

// ended counts what becomes of a message for good, but for those that are done or dead, which others count.
func (c *Counters) ended(o supervise.Outcome) {
	switch {
	case o.Action != supervise.DropMessage:
	case o.Err == caller.ErrExpired:
		c.Tally.Ended(tally.Expired)
	case errors.Is(o.Err, caller.ErrForgotten):
		c.Tally.Ended(tally.Forgotten)
	default:
		c.Tally.Ended(tally.Dropped)
	}
}

// Ends are the messages that ended, but for those that ended counts in Tally.
func (c *Counters) Ends() audit.Counts {
	return audit.Counts{Done: c.Settled[supervise.AckMessage].Load(), Fallback: c.Fallback.Load(), Dead: c.Stored()}
}
