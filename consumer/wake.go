package consumer

import (
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/supervisor"
)

// wake ends waits for an operator.
func (r *Relay) wake(order orders.Order) control.Woken {
	w := control.Woken{Instance: r.cfg.Instance, Service: r.cfg.Service, Route: order.Route}
	for _, rt := range r.routes.called(order.Route) {
		w.Known = true
		rt.endWaits(order, &w)
	}
	return w
}

// endWaits ends the waits of the route, or of one key, and what went away for them comes back.
func (rt *route) endWaits(order orders.Order, w *control.Woken) {
	attrs := []any{"by", order.By, "nats_user", order.User, "why", order.Why}
	if order.Key != nil {
		key := string(order.Key)
		w.State = rt.group.EndWait(key).String()
		rt.log.Info("an operator ended the waits of a key", append(attrs, "key", key, "was", w.State)...)
		return
	}
	before := rt.group.Status()
	var since time.Time
	w.State, w.Why, since = rt.condition(before)
	how := supervisor.AtOnce
	if order.Trial {
		how = supervisor.Trial
	}
	ended := rt.group.EndWaits(how)
	if own := rt.ownLimit(); own != nil {
		own.EndSlow()
	}
	w.Why, w.Waiting, w.Suspended = control.Cut(w.Why, control.MaxText), ended.Waiting, ended.Suspended
	switch {
	case ended.Route != supervisor.Flowing:
		w.Since = known(ended.Since)
	case w.State == RouteLimited:
		w.Since = known(since)
	}
	rt.log.Info("an operator ended the waits of the route", append(attrs, "was", w.State, "keys_waiting", ended.Waiting, "keys_suspended", ended.Suspended)...)
}
