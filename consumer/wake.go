package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/supervisor"
)

func wakeSubject(service string) string { return service + ".ctl.act.resume" }

// Woken is what an instance says of an order to end the waits of a route, or of one of its keys.
type Woken struct {
	Instance string `json:"instance"`
	Service  string `json:"service"`
	Route    string `json:"route"`
	// Known tells whether the instance has the route.
	Known bool `json:"known"`
	// State is in which the route was, or the key that was named, with why and since when.
	State string     `json:"state,omitempty"`
	Why   string     `json:"why,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Waiting and Suspended are how many keys of the route were in these states, and are tried now.
	Waiting   int `json:"keys_waiting"`
	Suspended int `json:"keys_suspended"`
}

// Wake has all instances end at once what a route waits for by itself, or with order.Key what that key waits for: the wait
// after a trip, a stop or a Retry-After, what [Msg.Slow] asked for, a suspension after giving up, and the stop of a route that failed. It is an act and
// no order: an instance that starts later knows nothing of it. [ErrNobody] says that no instance has answered.
func Wake(ctx context.Context, nc *nats.Conn, service string, order Order) (list []Woken, bad []string, err error) {
	order.Format = orders.Format
	request, err := json.Marshal(order)
	if err != nil {
		return nil, nil, err
	}
	err = gather(ctx, nc, wakeSubject(service), request, func(data []byte) error {
		var w Woken
		if json.Unmarshal(data, &w) != nil || w.Instance == "" || len(w.Instance) > maxKeyShown || w.Service != service || w.Route != order.Route {
			return errors.New("the answer does not say which waits were ended")
		}
		if slices.ContainsFunc(list, func(o Woken) bool { return o.Instance == w.Instance }) {
			return fmt.Errorf("instance %q answers twice", w.Instance)
		}
		list = append(list, w)
		return nil
	}, &bad)
	if err == nil && len(list) == 0 {
		err = ErrNobody
	}
	slices.SortFunc(list, func(a, b Woken) int { return cmp.Compare(a.Instance, b.Instance) })
	return list, bad, err
}

// answerWake ends waits for an operator.
func (r *Relay) answerWake(q *microRequest) {
	var order Order
	if json.Unmarshal(q.Data, &order) != nil || order.Format > orders.Format {
		q.fail("400", "this is no order, or one of a newer relay")
		return
	}
	w := Woken{Instance: r.cfg.Instance, Service: r.cfg.Service, Route: order.Route}
	for _, rt := range r.all() {
		if rt.name() == order.Route {
			w.Known = true
			rt.endWaits(order, &w)
		}
	}
	_ = q.respond(w)
}

// endWaits ends the waits of the route, or of one key, and what went away for them comes back.
func (rt *route) endWaits(order Order, w *Woken) {
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
	w.Why, w.Waiting, w.Suspended = cut(w.Why, maxTextLen), ended.Waiting, ended.Suspended
	switch {
	case ended.Route != supervisor.Flowing:
		w.Since = known(ended.Since)
	case w.State == RouteLimited:
		w.Since = known(since)
	}
	rt.log.Info("an operator ended the waits of the route", append(attrs, "was", w.State, "keys_waiting", ended.Waiting, "keys_suspended", ended.Suspended)...)
}
