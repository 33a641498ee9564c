package engine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/supervise"
)

// routeList is the routes that there are, but for those that are ending. A part of a route with partitions is one of them.
type routeList struct {
	of      atomic.Pointer[[]*route.Route]
	metrics *metrics.Collector // of them, and of those that ended
}

// All are a list that nobody changes.
func (l *routeList) All() []*route.Route {
	if list := l.of.Load(); list != nil {
		return *list
	}
	return nil
}

func (l *routeList) set(list []*route.Route) { l.of.Store(&list) }

// replace has these be the routes from now on. Those that end are parts of others, or are forgotten later.
func (l *routeList) replace(list, end []*route.Route) {
	ends := make(map[string][]*metrics.RouteCount)
	for _, rt := range end {
		ends[rt.Name()] = append(ends[rt.Name()], &rt.Count.RouteCount)
	}
	l.metrics.Change(ends, func() { l.set(list) })
}

// counting are the routes, and what was counted of them beside that.
func (l *routeList) counting() (routes []*route.Route, ended map[string][]*metrics.RouteCount) {
	ended = l.metrics.Ended(func() { routes = l.All() })
	return routes, ended
}

// Named is the route of the name, or nil.
func (l *routeList) Named(name string) *route.Route {
	list := l.All()
	if i := slices.IndexFunc(list, func(rt *route.Route) bool { return rt.Name() == name || rt.Spec.Name == name }); i >= 0 {
		return list[i]
	}
	return nil
}

// called are the routes that are called so: one, or those of its partitions.
func (l *routeList) called(name string) (list []*route.Route) {
	for _, rt := range l.All() {
		if rt.Name() == name {
			list = append(list, rt)
		}
	}
	return list
}

// calledName is what a route of that name is called outside of the engine.
func (l *routeList) calledName(name string) string {
	if rt := l.Named(name); rt != nil {
		return rt.Name()
	}
	return name
}

// Units are those of all routes, whether they are open or not: one of which another instance has the claim is not.
func (l *routeList) Units() (list []*Unit) {
	for _, rt := range l.All() {
		if u := unitOf(rt); u != nil && !slices.Contains(list, u) {
			list = append(list, u)
		}
	}
	return list
}

// stored is how many messages this instance has put into the dead letters and the retry stream.
func (l *routeList) stored() (n uint64) {
	for _, rt := range l.All() {
		n += rt.Count.Parked.Load() + rt.Count.Aside.Load() + rt.Count.Stored()
	}
	return n
}

// has tells whether a route is called so in the configuration of this instance.
func (l *routeList) has(name string) bool {
	return slices.ContainsFunc(l.All(), func(rt *route.Route) bool { return rt.Spec.Name == name })
}

// askTimeout bounds one question to the server. A time-out proves nothing.
const askTimeout = settle.Timeout

// tryHeld tries again to store the outcomes of held messages, until ctx is done.
func (l *routeList) tryHeld(ctx context.Context) {
	tick := beat.NewTicker(unstored.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			tick.Next()
			for _, rt := range l.All() {
				rt.Standstill.Troubles.Expire(now)
				rt.Path.Retry(now)
			}
		}
	}
}

// hear has a route hear what another instance tells.
func (l *routeList) hear(route, instance string, h supervise.Hint) {
	if rt := l.Named(route); rt != nil && !rt.Spec.Leased() {
		rt.Group.Hear(instance, h)
	}
}
