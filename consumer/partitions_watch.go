package consumer

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/peers"
)

// The generations of a route with partitions while it runs: one instance looks after their streams, and all follow.

// generationsConfig is how this instance looks after the generations of its routes.
func (r *Relay) generationsConfig() generations.Config {
	return generations.Config{
		JS: r.js, Service: r.cfg.Service,
		Routes: func() (list []*generations.Route) {
			for _, d := range r.divided.all() {
				list = append(list, d.Route)
			}
			return list
		},
		Changed: func() <-chan struct{} {
			if f := r.membership.Now(); f != nil {
				return f.Changed()
			}
			return nil
		},
		Further: func(g *generations.Route) bool {
			return peers.AreFurther(r.membership.Now(), g.Name, peers.Generations{Oldest: g.Streams[0].Number, Newest: g.Newest().Number})
		},
		Tends: r.routes.tends,
		Earlier: func(g *generations.Route) bool {
			return peers.WorkBefore(r.membership.Now(), g.Name, g.Streams[0].Number)
		},
		Anew:   func(ctx context.Context, g *generations.Route) error { return r.divideAnew(ctx, g.Name) },
		Looked: r.tellOfGenerations, EachSecond: r.balance,
	}
}

// watchPartitions looks after routes with partitions until ctx is done, and ends their handlers.
func (r *Relay) watchPartitions(ctx context.Context) {
	r.generations.Run(ctx)
	for _, d := range r.divided.all() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.phases.drainTime())
		d.endLives(end, nil)
		cancel()
	}
}

// tellOfGenerations says what becomes of former generations, and why that does not go on.
func (r *Relay) tellOfGenerations(g *generations.Route, err error) {
	const what = "the streams of its partitions"
	for _, rt := range r.routes.called(g.Name) {
		if rt.cfg.part.Number == 0 && !rt.handsOver() {
			if err == nil || r.running.isDraining() {
				rt.troubles.Mended(what, time.Now())
			} else {
				rt.troubles.Note(what, err, time.Now())
			}
		}
	}
}

// tends tells whether this instance looks after the streams of a route: it has the first partition of the newest generation.
func (l *routeList) tends(g *generations.Route) bool {
	rt := l.named(g.Newest().RouteOf(0))
	if rt == nil {
		return false
	}
	u := rt.unit.Load()
	return u != nil && u.tenure.Has()
}

// divideAnew has the parts of a route be those of the generations that there are.
func (r *Relay) divideAnew(ctx context.Context, name string) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	was := r.divided.get(name)
	if was == nil {
		return nil
	}
	c, err := r.expand(ctx, Change{Update: []Route{was.head}, DeliverAgain: true}, takeOthers)
	if err != nil {
		return err
	}
	from, to := was.Newest(), c.divided[name].Newest()
	if len(c.Add)+len(c.Update)+len(c.Remove) > 0 {
		p, err := r.plot(ctx, c.Change)
		if err != nil {
			return err
		}
		if !p.commit() {
			return ErrNotRunning
		}
		p.run()
	}
	r.made(c)
	r.log.Info("the number of partitions of the route changed; messages that wait are handed over first", "route", name, "partitions", to.Count, "before", from.Count, "generation", to.Number, "former_generations", len(c.divided[name].Streams)-1)
	return nil
}
