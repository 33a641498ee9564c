package consumer

import (
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// reasonOf says why a route or a key is paused.
func reasonOf(order *orders.Order) string {
	why := order.Why
	if why == "" {
		why = "paused by an operator"
	}
	return control.Cut(why, control.MaxText)
}

// obey applies an order.
func (rt *route) obey(order orders.Order) {
	pause, key := order.State == orders.Paused, string(order.Key)
	attrs := []any{"by", order.By, "nats_user", order.User, "at", order.At, "why", order.Why}
	if order.Key != nil {
		attrs = append(attrs, "key", key)
	}
	switch {
	case order.Key == nil && pause:
		rt.log.Warn("route is paused by an operator", attrs...)
		rt.setPaused(&order)
		rt.group.Pause()
	case order.Key == nil:
		if rt.setPaused(nil) {
			rt.log.Info("route is resumed by an operator", attrs...)
		}
		rt.group.Resume()
	case pause:
		rt.log.Warn("key is paused by an operator", attrs...)
		rt.group.SuspendKey(key, reasonOf(&order)+by(order))
	default:
		if rt.group.ResumeKey(key) {
			rt.log.Info("key is resumed by an operator", attrs...)
		}
	}
}

// by names the operator, behind a reason.
func by(order orders.Order) string {
	if order.By == "" {
		return ""
	}
	return " (by " + control.Cut(order.By, control.MaxKey) + ")"
}

// setPaused notes the order by which the route is paused; nil when it is not. It reports whether it was.
func (rt *route) setPaused(order *orders.Order) (was bool) {
	return rt.paused.Swap(order) != nil
}
