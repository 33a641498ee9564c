package engine

import (
	"context"
	"slices"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/partition"
)

// forOrphans is what the search for orphans has to know of routes.
func forOrphans(routes []route.Spec) (list []orphans.Route) {
	for _, rt := range routes {
		list = append(list, orphans.Route{Name: rt.Name, Durable: rt.Durable, Divided: rt.Partitions > 0})
	}
	return list
}

// orphansConfig is how this instance looks for orphans.
func orphansConfig(r *Engine, asked *backlog.Server) orphans.WatchConfig {
	return orphans.WatchConfig{
		Search: orphans.NewSearch(r.JS, r.Config.Service), Retries: r.Stores.Retries, Log: r.Log, Reads: r.Routes.durables,
		Known: func(stream, route, durable string) bool {
			return r.Running.reads(stream, durable) || r.Routes.reads(stream, durable) || peers.Uses(r.Membership.Now(), r.Config.Instance, stream, route, durable)
		},
		Divides: func(s *partition.Stream) bool {
			return r.Divided.Get(s.Route) != nil || peers.Divides(r.Membership.Now(), s.Route)
		},
		Count: func(ctx context.Context, stream, filter string) (uint64, error) {
			c, err := asked.Count(ctx, stream, filter)
			return c.N, err
		},
	}
}

// durables are those of all routes, whether they are open or not.
func (l *routeList) durables() (list []orphans.Reads) {
	for _, u := range l.Units() {
		d := orphans.Reads{Stream: u.Main.Stream, Durable: u.Main.Name, Log: u.Main.Log()}
		for _, rt := range u.routes {
			d.Routes = append(d.Routes, [2]string{rt.Spec.Name, u.Main.Stream})
			if p := rt.Spec.Part; p != nil {
				d.Routes = append(d.Routes, [2]string{p.Route, p.Stream})
			}
		}
		if slices.ContainsFunc(u.Open(), func(s *source.Source) bool { return !s.Due }) {
			d.RouteOf = func(subject string) string {
				if rt := u.Main.RouteOf(subject); rt != nil {
					return rt.Name
				}
				return ""
			}
		}
		list = append(list, d)
	}
	return list
}

// reads tells whether a durable is one of a route, whether it is open or not.
func (l *routeList) reads(stream, durable string) bool {
	return slices.ContainsFunc(l.Units(), func(u *Unit) bool { return u.Main.Stream == stream && u.Main.Name == durable })
}

// reads tells whether a durable is open.
func (r *running) reads(stream, durable string) bool {
	return slices.ContainsFunc(r.Sources(), func(s *source.Source) bool { return s.Stream == stream && s.Name == durable })
}
