package reload

import (
	"maps"
	"slices"
)

// Change names the routes of a change.
type Change struct{ Add, Update, Remove []string }

// Names are all of them, as they are given.
func (c Change) Names() []string { return slices.Concat(c.Add, c.Update, c.Remove) }

// Faults are what is wrong with the names by themselves. There are the routes that run.
func (c Change) Faults(there []string, fault func(route, text string)) {
	for _, name := range c.Add {
		if slices.Contains(there, name) {
			fault(name, "this instance already has a route of this name: update it, or remove it first")
		}
	}
	for _, name := range c.Update {
		if !slices.Contains(there, name) {
			fault(name, "this instance has no route of this name: add it")
		}
	}
	for _, name := range c.Remove {
		if !slices.Contains(there, name) {
			fault(name, "is not there")
		}
	}
	seen := make(map[string]bool)
	for _, name := range c.Names() {
		if seen[name] {
			fault(name, "is named twice in one change")
		}
		seen[name] = true
	}
}

// Unit is a durable that runs, by its place on the server, and its routes.
type Unit struct {
	Place  string
	Routes []string
}

// Running is what a change meets.
type Running struct {
	Units   []Unit
	InPlace []string          // routes of the change that may change in place
	Places  map[string]string // of the durables of those that may not, by route; without those that are removed
}

// Decision is what a change does.
type Decision struct {
	Ends    []int    // units, by their index
	Begin   []string // routes that begin, sorted
	Anew    []string // those of Begin that the change does not name, sorted: they share a durable with one that it names
	InPlace []string // routes that change in place, sorted
}

// Decide is for a change without faults.
func (c Change) Decide(r Running) (d Decision) {
	inPlace := setOf(r.InPlace)
	begin, named := setOf(slices.Collect(maps.Keys(r.Places))), setOf(c.Names())
	taken := setOf(slices.Collect(maps.Values(r.Places)))
	for i, u := range r.Units {
		ends := taken[u.Place] || slices.ContainsFunc(u.Routes, func(name string) bool { return named[name] && !inPlace[name] })
		if !ends {
			continue
		}
		d.Ends = append(d.Ends, i)
		for _, name := range u.Routes {
			switch {
			case inPlace[name]:
				delete(inPlace, name)
				begin[name] = true
			case !named[name]:
				d.Anew = append(d.Anew, name)
				begin[name] = true
			}
		}
	}
	slices.Sort(d.Anew)
	d.Begin, d.InPlace = slices.Sorted(maps.Keys(begin)), slices.Sorted(maps.Keys(inPlace))
	return d
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

// Line is the order of the routes after a change: those that stay or begin anew keep their places, and new ones come last. Ended are those that ended,
// begun are those that began, sorted.
func Line(line, ended, begun []string) (next []string) {
	gone, comes := setOf(ended), setOf(begun)
	for _, name := range line {
		if comes[name] || !gone[name] {
			next = append(next, name)
			delete(comes, name)
		}
	}
	return append(next, slices.Sorted(maps.Keys(comes))...)
}

// Awaits tells whether a unit that begins waits for the end of another one: they have a durable in common, or a route.
func (u Unit) Awaits(ended Unit) bool {
	return u.Place == ended.Place || slices.ContainsFunc(u.Routes, func(name string) bool { return slices.Contains(ended.Routes, name) })
}
