package engine

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/planned"
)

// Plan compares the routes with what is on the server; see Plan of package consumer. It is for an Engine that does not run.
func (r *Engine) Plan(ctx context.Context, made ...jetstream.StreamConfig) (*planned.Plan, error) {
	if err := r.attempt(ctx, func(ctx context.Context) error { return CheckJetStream(ctx, r.JS) }); err != nil {
		return nil, err
	}
	r.placing.Assume(made)
	if err := r.Stores.Attach(ctx); err != nil {
		return nil, err
	}
	plan := &planned.Plan{Durables: []planned.Durable{}, Left: []orphans.Orphan{}, Faults: []string{}}
	for _, c := range made {
		plan.Streams = append(plan.Streams, planned.Stream{Stream: c.Name, Subjects: c.Subjects})
	}
	var plain []*route.Route
	for _, rt := range r.Routes.All() {
		if rt.Spec.Partitions == 0 {
			plain = append(plain, rt)
		} else if d, err := r.Divided.planned(ctx, rt.Spec); err != nil {
			plan.Faults = append(plan.Faults, setupError(rt.Spec.Name, err).Error())
		} else {
			plan.Divided = append(plan.Divided, d)
		}
	}
	units, without, faults := unitsOf(ctx, r, plain, placing.Once)
	for _, err := range append(faultsOf(without), faults...) {
		plan.Faults = append(plan.Faults, err.Error())
	}
	var mains []*source.Source
	for _, u := range units {
		if r.placing.Assumed(u.Main.Stream) != nil {
			plan.Durables = append(plan.Durables, u.Main.Setup.PlannedAnew(u.Main.Names()))
		} else {
			mains = append(mains, u.Main)
		}
	}
	sideBySide(ctx, r.Conn, mains, lookAt)
	lookTwice(ctx, r.Conn, mains)
	for _, s := range mains {
		d, err := s.Setup.Planned(ctx, s.Names(), s.Setup.Err)
		if err != nil {
			return nil, err
		}
		plan.Durables = append(plan.Durables, d)
	}
	plan.Sort()
	var routes []route.Spec
	for _, rt := range r.Routes.All() {
		routes = append(routes, rt.Spec)
	}
	search := orphans.NewSearch(r.JS, r.Config.Service)
	search.Used = true
	left, err := search.All(ctx, forOrphans(routes))
	plan.Left = append(plan.Left, left...)
	return plan, err
}
