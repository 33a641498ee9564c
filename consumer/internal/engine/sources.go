package engine

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/supervisor"
)

// instanceOf is what the durables of this instance share.
func instanceOf(r *Engine) *source.Instance {
	return &source.Instance{
		Conn: r.Conn, JS: r.JS, API: r.API, Domain: r.Config.Domain, Log: r.log, Service: r.Config.Service, Name: r.Config.Instance,
		Adopt: r.Config.Adopt, Lease: r.Config.Lease, Stalled: r.Config.Stalled,
		Link: r.Link, Prober: r.prober, Streams: r.streams, Listings: &r.Listings, Stores: r.Stores, Late: make(chan struct{}, atOnce),
		New: func() source.Work { return new(Message) }, Plans: r.placing.Plans, DrainTime: r.Phases.drainTime, Attempt: r.attempt,
		HasRoute:           r.Routes.has,
		IsBehind:           func(ctx context.Context, p *generations.Part) (bool, error) { return r.Divided.maker.IsBehind(ctx, p) },
		GenerationsChanged: r.generations.Soon,
		Open:               r.Running.Sources, Include: r.Running.Include, Replace: r.Running.Replace,
	}
}

// toSource is what durables know of the route.
func (rt *Route) toSource() source.Route {
	c := rt.Spec
	return source.Route{
		Owner: rt, Name: c.Name, Called: rt.name(), Log: rt.log, Subjects: c.Subjects, AckWait: c.AckWait, Ordered: c.Order == supervisor.OrderKey,
		Start:  c.Start,
		Leased: c.Leased(), Part: c.part, MaxAge: func() time.Duration { return rt.Now().Retry.MaxAge },
		Group: rt.Group, Path: rt.Path, Memory: rt.Memory, Intake: rt.intake, Looks: rt.Questions, Troubles: rt.Standstill.troubles, Tally: &rt.Count.tally,
		Within: rt.within,
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
