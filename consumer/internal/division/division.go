// Package division is the routes with partitions of an instance, and turns a change of routes into the change of what runs. A route with partitions runs
// as its parts, each of which is a route by itself: where it changes, its parts begin, change and end. What became of the parts is then said of the route.
package division

import (
	"errors"
	"slices"
)

// Change is what changes of routes. R is a route as it is configured.
type Change[R any] struct {
	Add    []R // that do not exist yet
	Update []R // that exist
	Remove []string
}

// Config says what there is.
type Config[R any] struct {
	Name    func(R) string
	Divides func(R) bool // the route is to have partitions
	// Runs tells whether there is a route of the name, with partitions or without.
	Runs func(name string) bool
	// Parts are the names of the parts of a route with partitions; false: it has none.
	Parts func(name string) (parts []string, divided bool)
	// Divide makes the parts of a route that is to have partitions.
	Divide func(R) ([]R, error)
	// Stays tells whether a part that runs need not change.
	Stays func(part R) bool
	// Fault is an error of a route.
	Fault func(name, text string) error
	// Called is what a route of the name is called outside: the name of the route that it is a part of, or its own.
	Called func(name string) string
}

// Expanded is a change with parts in the place of routes with partitions.
type Expanded[R any] struct {
	Change[R]
	// Undivided are the routes that had partitions, and have none any more.
	Undivided []string

	cfg    Config[R]
	heads  map[string]string // the routes of the parts that are to run
	faults []error
}

// Expand puts parts into the place of routes with partitions. The error joins what is wrong with routes.
func Expand[R any](c Change[R], cfg Config[R]) (*Expanded[R], error) {
	e := &Expanded[R]{cfg: cfg, heads: make(map[string]string)}
	for _, rt := range c.Add {
		e.add(rt)
	}
	for _, rt := range c.Update {
		e.update(rt)
	}
	for _, name := range c.Remove {
		if parts, divided := cfg.Parts(name); divided {
			e.undivide(name, parts)
		} else {
			e.Remove = append(e.Remove, name)
		}
	}
	return e, errors.Join(e.faults...)
}

// add has a route begin.
func (e *Expanded[R]) add(rt R) {
	name := e.cfg.Name(rt)
	_, divided := e.cfg.Parts(name)
	switch divides := e.cfg.Divides(rt); {
	case divided || divides && e.cfg.Runs(name):
		e.fault(name, "this instance already has a route of this name: update it, or remove it first")
	case divides:
		e.Add = append(e.Add, e.parts(rt)...)
	default:
		e.Add = append(e.Add, rt)
	}
}

// update changes a route, which may get partitions by that, or lose them.
func (e *Expanded[R]) update(rt R) {
	name := e.cfg.Name(rt)
	parts, divided := e.cfg.Parts(name)
	switch divides := e.cfg.Divides(rt); {
	case !divided && !divides:
		e.Update = append(e.Update, rt)
	case !divided && !e.cfg.Runs(name):
		e.fault(name, "this instance has no route of this name: add it")
	case !divided:
		e.Remove, e.Add = append(e.Remove, name), append(e.Add, e.parts(rt)...)
	case !divides:
		e.undivide(name, parts)
		e.Add = append(e.Add, rt)
	default:
		e.divideAnew(rt, parts)
	}
}

// divideAnew has other parts in the place of those of a route, as far as they are others.
func (e *Expanded[R]) divideAnew(rt R, parts []string) {
	left := slices.Clone(parts)
	for _, part := range e.parts(rt) {
		if i := slices.Index(left, e.cfg.Name(part)); i < 0 {
			e.Add = append(e.Add, part)
		} else if left = slices.Delete(left, i, i+1); !e.cfg.Stays(part) {
			e.Update = append(e.Update, part)
		}
	}
	e.Remove = append(e.Remove, left...)
}

// undivide ends the parts of a route.
func (e *Expanded[R]) undivide(name string, parts []string) {
	e.Remove, e.Undivided = append(e.Remove, parts...), append(e.Undivided, name)
}

// parts are those that a route is to have.
func (e *Expanded[R]) parts(rt R) []R {
	list, err := e.cfg.Divide(rt)
	if err != nil {
		e.faults = append(e.faults, err)
		return nil
	}
	for _, part := range list {
		e.heads[e.cfg.Name(part)] = e.cfg.Name(rt)
	}
	return list
}

func (e *Expanded[R]) fault(name, text string) { e.faults = append(e.faults, e.cfg.Fault(name, text)) }

// Called are the routes that these names of routes and parts are of, each once. It is asked after the change.
func (e *Expanded[R]) Called(names []string) (list []string) {
	for _, name := range names {
		if head, ok := e.heads[name]; ok {
			name = head
		}
		if name = e.cfg.Called(name); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}
