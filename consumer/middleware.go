package consumer

import (
	"context"
	"errors"
	"fmt"
)

// Middleware makes a handler that is called instead of next and may call it: to measure, to log, to add to the context, to turn an
// error into a verdict. It is called once for each route with a Handler, and once for each child of a route with a Factory.
//
// A middleware wraps Handle only. relay calls the other methods of the route's own handler, of a [Starter], a [Stopper], a [Checker]
// or an [Outside], on that handler itself. So a middleware need not pass them on, and relay does not look for these interfaces on
// what it returns.
//
// A middleware may change the fields of the message that it passes on, its Data and Header included.
type Middleware func(next Handler) Handler

// wrap puts the middleware of the route around a handler of it, and around that the outer one, of the Relay.
func (r Route) wrap(h Handler, outer []Middleware) Handler {
	for _, list := range [][]Middleware{r.Use, outer} {
		for i := len(list) - 1; i >= 0; i-- {
			if list[i] == nil {
				continue // New has refused it
			}
			if h = list[i](h); h == nil {
				h = failing{fmt.Errorf("middleware Use[%d] returned no handler", i)}
			}
		}
	}
	return h
}

// failing stops its route.
type failing struct{ why error }

func (f failing) Handle(context.Context, *Msg) error { return FailRoute(f.why) }

// noNil finds middleware that is none.
func noNil(field string, list []Middleware) (faults []error) {
	for i, m := range list {
		if m == nil {
			faults = append(faults, fmt.Errorf("%s[%d]: %w", field, i, errNil))
		}
	}
	return faults
}

var errNil = errors.New("is nil")
