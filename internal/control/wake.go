package control

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/orders"
)

// WakeSubject is where such orders go.
func WakeSubject(service string) string { return service + ".ctl.act.resume" }

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
// after a trip, a stop or a Retry-After, what Msg.Slow of package consumer asked for, a suspension after giving up, and the stop of a route that failed. It is an act and
// no order: an instance that starts later knows nothing of it. [ErrNobody] says that no instance has answered.
func Wake(ctx context.Context, nc *nats.Conn, service string, order orders.Order) (list []Woken, bad []string, err error) {
	order.Format = orders.Format
	return act[Woken](ctx, nc, WakeSubject(service), order, answerer{service: service, route: order.Route}, "which waits were ended")
}

func (a Woken) by() answerer { return answerer{a.Instance, a.Service, a.Route} }
