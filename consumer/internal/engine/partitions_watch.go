package engine

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/route"
)

// The generations of a route with partitions while it runs: one instance looks after their streams, and all follow.

// watch is how this instance looks after the generations of its routes.
func (l *dividedRoutes) watch() generations.Config {
	r := l.engine
	return generations.Config{
		JS: r.JS, Service: r.Config.Service, Routes: l.Generations, Changed: r.Membership.Changed,
		Further: func(g *generations.Route) bool { return peers.AreFurther(r.Membership.Now(), g.Name, toTell(g)) },
		Tends:   r.Routes.tends,
		Earlier: func(g *generations.Route) bool {
			return peers.WorkBefore(r.Membership.Now(), g.Name, g.Streams[0].Number)
		},
		Anew: func(ctx context.Context, g *generations.Route) error { return l.follow(ctx, g.Name) },
		Looked: func(g *generations.Route, err error) {
			if r.Running.IsDraining() {
				err = nil
			}
			r.Routes.tellOfGenerations(g.Name, err, time.Now())
		},
		EachSecond: l.balance,
	}
}

// toTell is what the other instances are told of the generations of a route.
func toTell(g *generations.Route) peers.Generations {
	return peers.Generations{Oldest: g.Streams[0].Number, Newest: g.Newest().Number}
}

// run looks after the routes until ctx is done, and ends their handlers.
func (l *dividedRoutes) run(ctx context.Context) {
	l.engine.generations.Run(ctx)
	for _, d := range l.All() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.engine.Phases.DrainTime())
		d.EndBefore(end, nil)
		cancel()
	}
}

// follow has the parts of a route be those of the generations that there are.
func (l *dividedRoutes) follow(ctx context.Context, name string) error {
	r := l.engine
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	was := l.Get(name)
	if was == nil {
		return nil
	}
	c, err := l.expand(ctx, Change{Update: []route.Spec{was.Head}, DeliverAgain: true}, generations.TakeOthers)
	if err != nil {
		return err
	}
	from, to := was.Newest(), c.divided[name].Newest()
	if len(c.Add)+len(c.Update)+len(c.Remove) > 0 {
		p, err := c.Change.check(ctx, r)
		if err == nil {
			err = p.make()
		}
		if err != nil {
			return err
		}
	}
	l.made(c)
	r.Log.Info("the number of partitions of the route changed; messages that wait are handed over first", "route", name, "partitions", to.Count, "before", from.Count, "generation", to.Number, "former_generations", len(c.divided[name].Streams)-1)
	return nil
}

// reluctant is how long this instance leaves a partition to others that have fewer.
func (u *Unit) reluctant() time.Duration {
	p := u.routes[0].Spec.Part
	if p == nil {
		return 0
	}
	return peers.Divide(u.engine.Membership.Now(), p.Of).Reluctance()
}

// balance hands over partitions that other instances are to have, so that each has its share.
func (l *dividedRoutes) balance(ctx context.Context, g *generations.Route) {
	r := l.engine
	f := r.Membership.Now()
	if f == nil || r.Running.IsDraining() {
		return
	}
	now := peers.Divide(f, g.Newest().Generation)
	units := r.Routes.leave(g, now.Over())
	if len(units) == 0 {
		return
	}
	r.Log.Info("handing partitions over to instances that have fewer", "route", g.Name, "count", len(units), "has", now.Own())
	if err := restart(ctx, r, units...); err != nil && !errors.Is(err, roster.ErrNotRunning) {
		r.Log.Warn("partitions were not handed over; this instance keeps them", "route", g.Name, "error", err)
		for _, u := range units {
			u.tenure.Keep()
		}
	}
}

// leave has so many units of the newest generation leave their claims to others that stand by, at most.
func (l *routeList) leave(g *generations.Route, most int) (units []*Unit) {
	for _, rt := range l.called(g.Name) {
		u, p := unitOf(rt), rt.Spec.Part
		if u == nil || p == nil || p.Of.Number != g.Newest().Number || len(units) >= most { // without a part the route just lost its partitions
			continue
		}
		if u.tenure.Has() && len(rt.Holder().Standbys) > 0 {
			u.tenure.Leave()
			units = append(units, u)
		}
	}
	return units
}

// tellOfGenerations says what keeps former generations from ending.
func (l *routeList) tellOfGenerations(name string, err error, now time.Time) {
	const what = "the streams of its partitions"
	for _, rt := range l.called(name) {
		switch {
		case rt.Spec.Part == nil, rt.Spec.IsCopy(): // without a part the route just lost its partitions
		case err == nil:
			rt.Standstill.Troubles.Mended(what, now)
		default:
			rt.Standstill.Troubles.Note(what, err, now)
		}
	}
}

// tends tells whether this instance looks after the streams of a route: it has the first partition of the newest generation.
func (l *routeList) tends(g *generations.Route) bool {
	rt := l.Named(g.Newest().RouteOf(0))
	if rt == nil {
		return false
	}
	u := unitOf(rt)
	return u != nil && u.tenure.Has()
}
