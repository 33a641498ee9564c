package consumer

import (
	"context"
	"slices"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/partition"
)

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
		Search: r.search(), Retries: r.stores.Retries, Log: r.log, Reads: r.routes.reads,
		Known: func(stream, route, durable string) bool {
			return r.has(stream, durable) || peers.StandsBy(r.membership.Now(), r.cfg.Instance, route, durable)
		},
		Divides: func(s *partition.Stream) bool {
			return r.divided.Get(s.Route) != nil || peers.Divides(r.membership.Now(), s.Route)
		},
		Count: func(ctx context.Context, stream, filter string) (uint64, error) {
			c, err := r.asked().Count(ctx, stream, filter)
			return c.N, err
		},
	}
}

// reads are the durables of all routes, whether they are open or not.
func (l *routeList) reads() (list []orphans.Reads) {
	for _, u := range l.units() {
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

// has tells whether a durable is one of this instance, or of a route that another instance has the claim of.
func (r *Relay) has(stream, durable string) bool {
	if slices.ContainsFunc(r.running.sources(), func(s *source) bool { return s.stream == stream && s.durable == durable }) ||
		slices.ContainsFunc(r.routes.units(), func(u *unit) bool { return u.main.stream == stream && u.main.durable == durable }) {
		return true
	}
	return peers.Held(r.membership.Now(), stream, durable)
}
