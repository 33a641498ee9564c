package consumer

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/control"
)

// handover gives a route away, or leaves it to others.
func (r *Relay) handover(order control.HandoverOrder) control.HandedOver {
	out := control.HandedOver{Instance: r.cfg.Instance, Service: r.cfg.Service, Route: order.Route}
	rt, f := r.route(order.Route), r.membership.Now()
	if rt != nil && rt.name() != order.Route {
		rt = nil
	}
	switch {
	case rt == nil:
		return out
	case rt.cfg.part != nil:
		out.Refused = "the route has partitions, which move between instances by themselves"
		return out
	case !rt.cfg.Leased():
		out.Refused = "all instances handle messages of the route, so there is nothing to hand over"
		return out
	case f == nil:
		out.Refused = "this instance does not know the other instances yet"
		return out
	}
	u := rt.unit.Load()
	if u == nil {
		out.Refused = "the route is starting"
		return out
	}
	l := u.tenure.lease.Load()
	mine := l != nil && l.Valid()
	switch h := rt.holder(); {
	case mine && order.From != "" && order.From != r.cfg.Instance, !mine && h.Instance != order.From:
		out.Refused = "instance " + cmp.Or(h.Instance, "?") + " has the route"
	case !mine && h.Instance == r.cfg.Instance:
		out.Refused = "this instance cannot prove that it has the route: its lease was not renewed in time"
	case mine && order.To == r.cfg.Instance:
		out.Refused = "this instance already has the route"
	case mine && order.To != "" && !slices.Contains(h.Standbys, order.To):
		out.Refused = "instance " + order.To + " does not stand by for the route"
	case mine && len(h.Standbys) == 0:
		out.Refused = "no other instance stands by for the route"
	case mine:
		out.Giving = true
		f.Rest(u.resource(), time.Now().Add(r.drainTime()+2*r.cfg.Fleet.lease()))
		rt.log.Info("handing the route over, as an operator ordered", "by", order.By, "to", order.To)
		u.handOver()
	case order.To != "" && order.To != r.cfg.Instance:
		out.Resting = true
		f.Rest(u.resource(), time.Now().Add(2*r.cfg.Fleet.lease()))
	}
	return out
}

// handOver ends the work on a unit, with a drain, and stands by again.
func (u *unit) handOver() {
	r := u.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || u.closing {
		return
	}
	r.changes.Go(func() {
		if err := r.restart(r.ends, u); err != nil && !errors.Is(err, ErrNotRunning) {
			u.main.log.Warn("the route was not handed over; this instance keeps it", "error", err)
			if f := r.membership.Now(); f != nil {
				f.Rest(u.resource(), time.Time{})
			}
		}
	})
}
