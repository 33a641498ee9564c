package consumer

import (
	"context"
	"slices"

	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/partition"
)

// Orphan is something of relay's that waits for a route which is not there: one that was renamed, taken away, or given another stream or durable.
type Orphan = orphans.Orphan

// forOrphans is what the search for orphans has to know of routes.
func forOrphans(routes []Route) (list []orphans.Route) {
	for _, rt := range routes {
		rt = rt.WithDefaults()
		list = append(list, orphans.Route{Name: rt.Name, Durable: rt.Durable, Divided: rt.Partitions > 0})
	}
	return list
}

// search is that of this instance.
func (r *Relay) search() orphans.Search {
	return orphans.Search{JS: r.js, Service: r.cfg.Service, Answers: orphans.AnyAnswers(r.js)}
}

// orphansConfig is how this instance looks for orphans.
func (r *Relay) orphansConfig() orphans.WatchConfig {
	return orphans.WatchConfig{
		Search: r.search(), Retries: r.retries, Log: r.log, Reads: r.reads,
		Known:   func(stream, route, durable string) bool { return r.has(stream, durable) || r.standsBy(route, durable) },
		Divides: func(s *partition.Stream) bool { return r.divided.get(s.Route) != nil || r.othersDivide(s) },
		Count: func(ctx context.Context, stream, filter string) (uint64, error) {
			c, err := r.countMatching(ctx, stream, filter)
			return c.n, err
		},
	}
}

// reads are the durables of all routes, whether they are open or not.
func (r *Relay) reads() (list []orphans.Reads) {
	for _, u := range r.unitsOfRoutes() {
		d := orphans.Reads{Stream: u.main.stream, Durable: u.main.durable, Log: u.main.log}
		for _, rt := range u.main.routes {
			d.Routes = append(d.Routes, [2]string{rt.cfg.Name, u.main.stream})
			if p := rt.cfg.part; p != nil {
				d.Routes = append(d.Routes, [2]string{p.Route, p.Stream})
			}
		}
		if slices.ContainsFunc(u.open(), func(s *source) bool { return !s.due }) {
			d.RouteOf = func(subject string) string {
				if rt := u.main.routeOf(subject); rt != nil {
					return rt.cfg.Name
				}
				return ""
			}
		}
		list = append(list, d)
	}
	return list
}

// unitsOfRoutes are those of all routes, whether they are open or not: one of which another instance has the claim is not.
func (r *Relay) unitsOfRoutes() (list []*unit) {
	for _, rt := range r.all() {
		if u := rt.unit.Load(); u != nil && !slices.Contains(list, u) {
			list = append(list, u)
		}
	}
	return list
}

// othersDivide tells whether another instance works on the partitions of a stream.
func (r *Relay) othersDivide(s *partition.Stream) bool {
	f := r.membership.Now()
	if f == nil {
		return false
	}
	members, _ := f.Members()
	return slices.ContainsFunc(members, func(m fleet.Member) bool {
		_, told := stateOf(m).Generations[s.Route]
		return m.Gone.IsZero() && told
	})
}

// has tells whether a durable is one of this instance, or of a route that another instance has the claim of.
func (r *Relay) has(stream, durable string) bool {
	if slices.ContainsFunc(r.openSources(), func(s *source) bool { return s.stream == stream && s.durable == durable }) ||
		slices.ContainsFunc(r.unitsOfRoutes(), func(u *unit) bool { return u.main.stream == stream && u.main.durable == durable }) {
		return true
	}
	f := r.membership.Now()
	if f == nil {
		return false
	}
	_, held := f.Holder(resourceOf(stream, durable))
	return held
}

// standsBy tells whether another instance would take a route of which one instance at a time handles messages, with this durable.
func (r *Relay) standsBy(route, durable string) bool {
	f := r.membership.Now()
	if f == nil {
		return false
	}
	members, _ := f.Members()
	return slices.ContainsFunc(members, func(m fleet.Member) bool {
		return m.Gone.IsZero() && m.Instance != r.cfg.Instance && stateOf(m).reads(route, durable)
	})
}
