// Package operators applies to a route what operators say of it: an order that pauses or resumes it or a key, and the end of what it waits for.
package operators

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/supervise"
)

// Pause is the order by which a route is paused. The zero value is that of one that is not.
type Pause struct{ order atomic.Pointer[orders.Order] }

// Order is nil when the route is not paused.
func (p *Pause) Order() *orders.Order { return p.order.Load() }

// Obey applies an order to the route.
func (p *Pause) Obey(order orders.Order, group *supervise.Group, log *slog.Logger) {
	pause, key := order.State == orders.Paused, string(order.Key)
	attrs := []any{"by", order.By, "nats_user", order.User, "at", order.At, "why", order.Why}
	if order.Key != nil {
		attrs = append(attrs, "key", key)
	}
	switch {
	case order.Key == nil && pause:
		log.Warn("route is paused by an operator", attrs...)
		p.order.Store(&order)
		group.Pause()
	case order.Key == nil:
		if p.order.Swap(nil) != nil {
			log.Info("route is resumed by an operator", attrs...)
		}
		group.Resume()
	case pause:
		log.Warn("key is paused by an operator", attrs...)
		group.SuspendKey(key, Reason(order)+by(order))
	default:
		if group.ResumeKey(key) {
			log.Info("key is resumed by an operator", attrs...)
		}
	}
}

// Reason says why a route or a key is paused.
func Reason(order orders.Order) string {
	why := order.Why
	if why == "" {
		why = "paused by an operator"
	}
	return control.Cut(why, control.MaxText)
}

// by names the operator, behind a reason.
func by(order orders.Order) string {
	if order.By == "" {
		return ""
	}
	return " (by " + control.Cut(order.By, control.MaxKey) + ")"
}

// Waits are what a route waits for.
type Waits struct {
	Group *supervise.Group
	Log   *slog.Logger
	Own   *limit.Limit // of the route alone; nil without one
	// Condition is the state of the route, why, and since when if that is known.
	Condition func(supervise.Status) (state, why string, since time.Time)
}

// End ends the waits of the route, or of the key that the order names, and what went away for them comes back. It notes what they were.
func (w Waits) End(order orders.Order, was *control.Woken) {
	attrs := []any{"by", order.By, "nats_user", order.User, "why", order.Why}
	if order.Key != nil {
		key := string(order.Key)
		was.State = w.Group.EndWait(key).String()
		w.Log.Info("an operator ended the waits of a key", append(attrs, "key", key, "was", was.State)...)
		return
	}
	var since time.Time
	was.State, was.Why, since = w.Condition(w.Group.Status())
	how := supervise.AtOnce
	if order.Trial {
		how = supervise.Trial
	}
	ended := w.Group.EndWaits(how)
	if w.Own != nil {
		w.Own.EndSlow()
	}
	was.Why, was.Waiting, was.Suspended = control.Cut(was.Why, control.MaxText), ended.Waiting, ended.Suspended
	switch {
	case ended.Route != supervise.Flowing:
		was.Since = known(ended.Since)
	case was.State == control.StateLimited:
		was.Since = known(since)
	}
	w.Log.Info("an operator ended the waits of the route", append(attrs, "was", was.State, "keys_waiting", ended.Waiting, "keys_suspended", ended.Suspended)...)
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
