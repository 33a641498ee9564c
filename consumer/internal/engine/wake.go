package engine

import (
	"github.com/relaymq/relay/consumer/internal/operators"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// obey has the routes obey an order that is for them.
func (l *routeList) obey(order orders.Order) {
	for _, rt := range l.called(order.Route) {
		rt.Standstill.Obey(order)
	}
}

// wake ends waits for an operator.
func (l *routeList) wake(order orders.Order) (w control.Woken) {
	for _, rt := range l.called(order.Route) {
		w.Known = true
		operators.Waits{Group: rt.Group, Log: rt.Log, Own: rt.OwnLimit(), Condition: rt.Standstill.Condition}.End(order, &w)
	}
	return w
}
