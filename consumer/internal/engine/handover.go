package engine

import (
	"errors"

	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/internal/control"
)

// handover gives a route away, or leaves it to others.
func (l *routeList) handover(order control.HandoverOrder) (out control.HandedOver) {
	rt := l.Named(order.Route)
	if rt != nil && rt.Name() != order.Route {
		rt = nil
	}
	switch {
	case rt == nil:
		return out
	case rt.Spec.Part != nil:
		out.Refused = "the route has partitions, which move between instances by themselves"
		return out
	case !rt.Spec.Leased():
		out.Refused = "all instances handle messages of the route, so there is nothing to hand over"
		return out
	case rt.Home.Fleet.Now() == nil:
		out.Refused = "this instance does not know the other instances yet"
		return out
	}
	u := unitOf(rt)
	if u == nil {
		out.Refused = "the route is starting"
		return out
	}
	h := u.tenure.Order(order, rt.Holder().Standbys)
	out.Giving, out.Resting, out.Refused = h.Giving, h.Resting, h.Refused
	if out.Giving {
		rt.Log.Info("handing the route over, as an operator ordered", "by", order.By, "to", order.To)
		u.handOver()
	}
	return out
}

// handOver ends the work on a unit, with a drain, and stands by again.
func (u *Unit) handOver() {
	r := u.relay
	r.Running.Change(u, func() {
		if err := restart(r.Phases.Ends, r, u); err != nil && !errors.Is(err, roster.ErrNotRunning) {
			u.Main.Log().Warn("the route was not handed over; this instance keeps it", "error", err)
			u.tenure.Keep()
		}
	})
}
