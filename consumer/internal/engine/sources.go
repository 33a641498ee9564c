package engine

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
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
