package division

import (
	"context"
	"sync"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/usercode"
)

// Route is a route with partitions. R is a route as it is configured.
type Route[R any] struct {
	*generations.Route
	Head              R
	Handler, Fallback usercode.Shared // by all parts
}

// Generations are those of the route. Of nil, which has no partitions, there are none.
func (d *Route[R]) Generations() *generations.Route {
	if d == nil {
		return nil
	}
	return d.Route
}

// Next is the route with other generations, or as it is configured otherwise. Until it is said which handlers it has, they are those of before. Nil is a
// route that had no partitions.
func (d *Route[R]) Next(g *generations.Route, head R) *Route[R] {
	next := &Route[R]{Route: g, Head: head}
	if d != nil {
		next.Handler, next.Fallback = d.Handler, d.Fallback
	}
	return next
}

// EndBefore stops handlers that no part has any more, and that the next route does not have; nil: there is none.
func (d *Route[R]) EndBefore(ctx context.Context, next *Route[R]) {
	if next == nil {
		next = new(Route[R])
	}
	d.Handler.EndBefore(ctx, next.Handler)
	d.Fallback.EndBefore(ctx, next.Fallback)
}

// Routes are those with partitions, by their names. The zero value has none. They are safe for concurrent use.
type Routes[R any] struct {
	mu   sync.Mutex
	list map[string]*Route[R]
}

// Get returns nil for a route that has no partitions.
func (l *Routes[R]) Get(name string) *Route[R] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[name]
}

// All are in no order.
func (l *Routes[R]) All() (list []*Route[R]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.list {
		list = append(list, d)
	}
	return list
}

// Set has a route be divided like that; nil: it has no partitions any more.
func (l *Routes[R]) Set(name string, to *Route[R]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		l.list = make(map[string]*Route[R])
	}
	if l.list[name] = to; to == nil {
		delete(l.list, name)
	}
}

// Parts are the names of the parts of a route; false: it has no partitions.
func (l *Routes[R]) Parts(name string) (parts []string, divided bool) {
	d := l.Get(name)
	if d == nil {
		return nil, false
	}
	for _, p := range d.Parts() {
		parts = append(parts, p.Name())
	}
	return parts, true
}

// Generations are those of all routes.
func (l *Routes[R]) Generations() (list []*generations.Route) {
	for _, d := range l.All() {
		list = append(list, d.Route)
	}
	return list
}
