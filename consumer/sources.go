package consumer

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/supervisor"
)

// instanceOf is what the durables of this instance share.
func instanceOf(r *Relay) *source.Instance {
	return &source.Instance{
		Conn: r.nc, JS: r.js, API: r.api, Domain: r.cfg.Domain, Log: r.log, Service: r.cfg.Service, Name: r.cfg.Instance,
		Adopt: r.cfg.Adopt, Lease: r.cfg.Fleet.lease(), Stalled: r.cfg.Stalled,
		Link: r.link, Prober: r.prober, Streams: r.streams, Listings: &r.listings, Stores: r.stores, Late: make(chan struct{}, atOnce),
		New: func() source.Work { return new(message) }, Plans: r.placing.Plans, DrainTime: r.phases.drainTime, Attempt: r.attempt,
		HasRoute:           r.routes.has,
		IsBehind:           func(ctx context.Context, p *generations.Part) (bool, error) { return r.divided.maker.IsBehind(ctx, p) },
		GenerationsChanged: r.generations.Soon,
		Open:               r.running.Sources, Include: r.running.Include, Replace: r.running.Replace,
	}
}

// toSource is what durables know of the route.
func (rt *route) toSource() source.Route {
	c := rt.cfg
	return source.Route{
		Owner: rt, Name: c.Name, Called: rt.name(), Log: rt.log, Subjects: c.Subjects, AckWait: c.AckWait, Ordered: c.Order == supervisor.OrderKey,
		Start:  source.Start{Policy: c.Start.Policy, Since: c.Start.Since, Seq: c.Start.Seq, Text: c.Start.String()},
		Leased: c.Leased(), Part: c.part, MaxAge: func() time.Duration { return rt.now().Retry.MaxAge },
		Group: rt.group, Path: rt.path, Memory: rt.memory, Intake: rt.intake, Looks: rt.looks, Troubles: rt.standstill.troubles, Tally: &rt.count.tally,
		Within: rt.within,
	}
}

// sourcesOf are the sources of units.
func sourcesOf(units []*unit) (list []*source.Source) {
	for _, u := range units {
		list = append(list, u.sources()...)
	}
	return list
}

// lookAt looks at the durable of a source.
func lookAt(s *source.Source, ctx context.Context) error { return s.Setup.Look(ctx) }
