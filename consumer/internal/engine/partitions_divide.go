package engine

import (
	"context"
	"errors"

	"github.com/relaymq/relay/consumer/internal/division"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/planned"
)

// dividedRoutes are the routes with partitions of an instance.
type dividedRoutes struct {
	division.Routes[route.Spec]
	engine *Engine
	maker  generations.Maker
}

// divided is a route with partitions.
type divided = division.Route[route.Spec]

func newDividedRoutes(r *Engine) *dividedRoutes {
	return &dividedRoutes{
		engine: r, maker: generations.Maker{Conn: r.Conn, JS: r.JS, API: r.API, Service: r.Config.Service, Replicas: r.Config.Replicas, Log: r.Log},
	}
}

// divide finds how a route is divided, and how it is to be.
func (l *dividedRoutes) divide(ctx context.Context, head route.Spec, how generations.Dividing) (*divided, error) {
	var g *generations.Route
	was := l.Get(head.Name)
	err := l.engine.attempt(ctx, func(ctx context.Context) (err error) {
		g, err = l.maker.Divide(ctx, l.wanted(head), was.Generations(), how)
		return err
	})
	if err != nil {
		return nil, err
	}
	var fallback route.Fallback
	if head.Fallback != nil {
		fallback = *head.Fallback
	}
	d := was.Next(g, head)
	d.Handler, d.Fallback = d.Handler.Next(head.Code.Shared, head.Timeout), d.Fallback.Next(fallback.Code.Shared, fallback.Timeout)
	return d, nil
}

// planned is what would become of the partitions of a route.
func (l *dividedRoutes) planned(ctx context.Context, head route.Spec) (p planned.Divided, err error) {
	err = l.engine.attempt(ctx, func(ctx context.Context) error {
		p, err = l.maker.Planned(ctx, l.wanted(head), l.engine.placing.Assumed)
		return err
	})
	return p, err
}

// wanted is how the route is to be divided.
func (l *dividedRoutes) wanted(head route.Spec) generations.Wanted {
	return generations.Wanted{
		Route: head.Name, Layout: head.Layout(), Start: generations.Start{Policy: head.Start.Policy, Since: head.Start.Since, Seq: head.Start.Seq},
		Origin: func(ctx context.Context) (string, error) { return l.engine.placing.StreamOf(ctx, head.Placed()) },
	}
}

// divideAll has routes with partitions run as their parts: those that have a stream.
func (l *dividedRoutes) divideAll(ctx context.Context) (faults []error) {
	r := l.engine
	var list []*route.Route
	for _, rt := range r.Routes.All() {
		if rt.Spec.Partitions == 0 {
			list = append(list, rt)
			continue
		}
		var d *divided
		err := r.Troubles.Persist(ctx, "the partitions of route "+rt.Spec.Name, func(ctx context.Context) (err error) {
			d, err = l.divide(ctx, rt.Spec, generations.MakeWanted)
			return err
		})
		var none *placing.NoStream
		if errors.As(err, &none) {
			list = append(list, rt)
			continue
		}
		if err != nil {
			faults = append(faults, setupError(rt.Spec.Name, err))
			continue
		}
		l.Set(rt.Spec.Name, d)
		rt.Group.Drain()
		for _, cfg := range routesOf(d) {
			part := route.New(r.Home, cfg, r.Config.Limits, nil)
			r.enter(part)
			list = append(list, part)
		}
	}
	if len(faults) == 0 {
		r.Routes.set(list)
	}
	return faults
}

// routesOf are the routes that run for the parts of a route.
func routesOf(d *divided) (list []route.Spec) {
	for _, p := range d.Parts() {
		cfg := d.Head
		cfg.Part = &p
		cfg.Name, cfg.Stream, cfg.Durable, cfg.Subjects = p.Name(), p.Of.Name(), p.Of.DurableOf(p.Number), []string{p.Of.Part(p.Number)}
		cfg.Start, cfg.Instances, cfg.Partitions = source.Start{Policy: "all", Text: "all"}, route.InstancesOne, 0
		cfg.Stash.Bytes = max(cfg.Stash.Bytes/p.Of.Count, 1<<20) // which bounds the memory
		cfg.Life, cfg.FallbackLife = d.Handler.Life(), d.Fallback.Life()
		if p.HandsOver() {
			cfg.Limits, cfg.Batch, cfg.Fallback = nil, nil, nil
		}
		list = append(list, cfg)
	}
	return list
}

// behind is how many messages the copies of a route with partitions are behind; below zero: that is not known, or it has none.
func (l *dividedRoutes) behind(route string) int64 {
	if d := l.Get(route); d != nil {
		return d.Behind()
	}
	return -1
}
