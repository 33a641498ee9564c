package consumer

import (
	"slices"
	"sync/atomic"

	"github.com/relaymq/relay/internal/orders"
)

// routeList is the routes that there are, but for those that are ending. A part of a route with partitions is one of them.
type routeList struct{ of atomic.Pointer[[]*route] }

// all are a list that nobody changes.
func (l *routeList) all() []*route {
	if list := l.of.Load(); list != nil {
		return *list
	}
	return nil
}

func (l *routeList) set(list []*route) { l.of.Store(&list) }

// named is the route of the name, or nil.
func (l *routeList) named(name string) *route {
	list := l.all()
	if i := slices.IndexFunc(list, func(rt *route) bool { return rt.name() == name || rt.cfg.Name == name }); i >= 0 {
		return list[i]
	}
	return nil
}

// called are the routes that are called so: one, or those of its partitions.
func (l *routeList) called(name string) (list []*route) {
	for _, rt := range l.all() {
		if rt.name() == name {
			list = append(list, rt)
		}
	}
	return list
}

// calledName is what a route of that name is called outside of this package.
func (l *routeList) calledName(name string) string {
	if rt := l.named(name); rt != nil {
		return rt.name()
	}
	return name
}

// units are those of all routes, whether they are open or not: one of which another instance has the claim is not.
func (l *routeList) units() (list []*unit) {
	for _, rt := range l.all() {
		if u := rt.unit.Load(); u != nil && !slices.Contains(list, u) {
			list = append(list, u)
		}
	}
	return list
}

// stored is how many messages this instance has put into the dead letters and the retry stream.
func (l *routeList) stored() (n uint64) {
	for _, rt := range l.all() {
		n += rt.count.Parked.Load() + rt.count.Aside.Load() + rt.count.Stored()
	}
	return n
}

// obey has the routes obey an order that is for them.
func (l *routeList) obey(order orders.Order) {
	for _, rt := range l.called(order.Route) {
		rt.obey(order)
	}
}
