package engine

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/retry"
)

// instanceOf is what the durables of this instance share.
func instanceOf(r *Engine) *source.Instance {
	return &source.Instance{
		Conn: r.Conn, JS: r.JS, API: r.API, Domain: r.Config.Domain, Log: r.Log, Service: r.Config.Service, Name: r.Config.Instance,
		Adopt: r.Config.Adopt, Lease: r.Config.Lease, Stalled: r.Config.Stalled,
		Link: r.Link, Prober: r.prober, Streams: r.streams, Listings: &r.Listings, Stores: r.Stores, Late: make(chan struct{}, atOnce),
		New: func() source.Work { return new(route.Message) }, Plans: r.placing.Plans, DrainTime: r.Phases.DrainTime, Attempt: r.attempt,
		HasRoute:           r.Routes.has,
		IsBehind:           func(ctx context.Context, p *generations.Part) (bool, error) { return r.Divided.maker.IsBehind(ctx, p) },
		GenerationsChanged: r.generations.Soon,
		Open:               r.Running.Sources, Include: r.Running.Include, Replace: r.Running.Replace,
	}
}

// sourcesOf are the sources of units.
func sourcesOf(units []*Unit) (list []*source.Source) {
	for _, u := range units {
		list = append(list, u.sources()...)
	}
	return list
}

// lookAt looks at the durable of a source.
func lookAt(s *source.Source, ctx context.Context) error { return s.Setup.Look(ctx) }

// dueSourceOf is where a route gets what comes due of its stream: what it parked, and what is replayed to it. It is a durable on the retry
// stream for each route and stream: two deployments may have a route of the same name, each on a stream of its own.
//
// Of a route with partitions the first one gets it, and puts it into the partition of its key, once no former generation is left whose messages are before it.
func dueSourceOf(r *Engine, rt *route.Route, stream string) *source.Source {
	name := rt.Spec.Name
	if p := rt.Spec.Part; p != nil {
		if p.Number > 0 || p.To != nil || p.After {
			return nil
		}
		name, stream = p.Route, p.Stream
	}
	due := source.NewDue(r.Durables, retry.DueDurable(name, stream), stream)
	due.Add(&rt.Source, r.Stores.Retries.DueSubjects(name, stream))
	return due
}
