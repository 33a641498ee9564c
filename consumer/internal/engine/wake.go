package engine

import (
	"github.com/relaymq/relay/consumer/internal/operators"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// obey has the routes obey an order that is for them.
func (l *routeList) obey(order orders.Order) {
	for _, rt := range l.called(order.Route) {
		rt.Standstill.obey(order)
	}
}

func (st *standstill) obey(order orders.Order) { st.paused.Obey(order, st.Group, st.log) }

// wake ends waits for an operator.
func (l *routeList) wake(order orders.Order) (w control.Woken) {
	for _, rt := range l.called(order.Route) {
		w.Known = true
		operators.Waits{Group: rt.Group, Log: rt.log, Own: rt.ownLimit(), Condition: rt.Standstill.condition}.End(order, &w)
	}
	return w
}
