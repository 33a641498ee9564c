package control

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/orders"
)

// HandoverSubject is where such orders go.
func HandoverSubject(service string) string { return service + ".ctl.act.handover" }

// HandoverOrder asks the instance that has a route with instances: one to give it to another one.
type HandoverOrder struct {
	Route string `json:"route"`
	// From is the instance that has it: an order that comes late, when somebody else has the route already, does nothing.
	From string `json:"from"`
	// To is the instance that is to have it; empty: any that stands by.
	To     string `json:"to,omitempty"`
	By     string `json:"by,omitempty"`
	Format int    `json:"format"`
}

// HandedOver is what an instance says of the order.
type HandedOver struct {
	Instance string `json:"instance"`
	Service  string `json:"service"`
	Route    string `json:"route"`
	// Giving: it had the route, and drains it. Resting: it stood by, and leaves the route to the others for a while.
	Giving  bool   `json:"giving,omitempty"`
	Resting bool   `json:"resting,omitempty"`
	Refused string `json:"refused,omitempty"` // why it does not
}

// Handover has the instance that has the route give it to another one, with a drain: handlers that run finish, for as long as Config.Drain
// permits. The answers come when the drain begins. [ErrNobody] says that no instance has answered.
func Handover(ctx context.Context, nc *nats.Conn, service string, order HandoverOrder) (list []HandedOver, bad []string, err error) {
	order.Format = orders.Format
	return act[HandedOver](ctx, nc, HandoverSubject(service), order, answerer{service: service, route: order.Route}, "what became of the order")
}

func (a HandedOver) by() answerer { return answerer{a.Instance, a.Service, a.Route} }
