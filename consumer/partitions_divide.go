package consumer

import (
	"context"
	"errors"

	"github.com/relaymq/relay/consumer/internal/division"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/internal/planned"
)

// dividedRoutes are the routes with partitions of a Relay.
type dividedRoutes struct {
	division.Routes[Route]
	relay *Relay
	maker generations.Maker
}

// divided is a route with partitions.
type divided = division.Route[Route]

func newDividedRoutes(r *Relay) *dividedRoutes {
	return &dividedRoutes{
		relay: r, maker: generations.Maker{Conn: r.nc, JS: r.js, API: r.api, Service: r.cfg.Service, Replicas: r.cfg.Replicas, Log: r.log},
	}
}

// divide finds how a route is divided, and how it is to be.
func (l *dividedRoutes) divide(ctx context.Context, head Route, how generations.Dividing) (*divided, error) {
	var g *generations.Route
	was := l.Get(head.Name)
	err := l.relay.attempt(ctx, func(ctx context.Context) (err error) {
		g, err = l.maker.Divide(ctx, l.wanted(head), was.Generations(), how)
		return err
	})
	if err != nil {
		return nil, err
	}
	var fallback Fallback
	if head.Fallback != nil {
		fallback = *head.Fallback
	}
	d := was.Next(g, head)
	d.Handler, d.Fallback = d.Handler.Next(head.Handler, head.Timeout), d.Fallback.Next(fallback.Handler, fallback.Timeout)
	return d, nil
}

// planned is what would become of the partitions of a route.
func (l *dividedRoutes) planned(ctx context.Context, head Route) (p planned.Divided, err error) {
	err = l.relay.attempt(ctx, func(ctx context.Context) error {
		p, err = l.maker.Planned(ctx, l.wanted(head), l.relay.placing.Assumed)
		return err
	})
	return p, err
}

// wanted is how the route is to be divided.
func (l *dividedRoutes) wanted(head Route) generations.Wanted {
	return generations.Wanted{
		Route: head.Name, Layout: head.layout(), Start: generations.Start(head.Start),
		Origin: func(ctx context.Context) (string, error) { return l.relay.placing.StreamOf(ctx, head.placed()) },
	}
}

// divideAll has routes with partitions run as their parts: those that have a stream.
func (l *dividedRoutes) divideAll(ctx context.Context) (faults []error) {
	r := l.relay
	var list []*route
	for _, rt := range r.routes.all() {
		if rt.cfg.Partitions == 0 {
			list = append(list, rt)
			continue
		}
		var d *divided
		err := r.troubles.Persist(ctx, "the partitions of route "+rt.cfg.Name, func(ctx context.Context) (err error) {
			d, err = l.divide(ctx, rt.cfg, generations.MakeWanted)
			return err
		})
		var none *placing.NoStream
		if errors.As(err, &none) {
			list = append(list, rt)
			continue
		}
		if err != nil {
			faults = append(faults, setupError(rt.cfg.Name, err))
			continue
		}
		l.Set(rt.cfg.Name, d)
		rt.group.Drain()
		for _, cfg := range routesOf(d) {
			part := newRoute(r, cfg, r.cfg.Limits, nil)
			r.enter(part)
			list = append(list, part)
		}
	}
	if len(faults) == 0 {
		r.routes.set(list)
	}
	return faults
}

// routesOf are the routes that run for the parts of a route.
func routesOf(d *divided) (list []Route) {
	for _, p := range d.Parts() {
		cfg := d.Head
		cfg.part = &p
		cfg.Name, cfg.Stream, cfg.Durable, cfg.Subjects = p.Name(), p.Of.Name(), p.Of.DurableOf(p.Number), []string{p.Of.Part(p.Number)}
		cfg.Start, cfg.Instances, cfg.Partitions = StartAll, InstancesOne, 0
		cfg.Stash.Bytes = max(cfg.Stash.Bytes/Bytes(p.Of.Count), 1<<20) // which bounds the memory
		cfg.life, cfg.fallbackLife = d.Handler.Life(), d.Fallback.Life()
		if p.HandsOver() {
			cfg.Limits, cfg.Batch, cfg.Fallback = nil, nil, nil
		}
		list = append(list, cfg)
	}
	return list
}
