package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/foreign"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/planned"
)

// How a route with partitions is divided: which generations there are, and the routes of their parts.

// dividing says what becomes of the generations of a route.
type dividing int

const (
	checkOnly  dividing = iota // nothing is made: it is only said whether it could be
	makeWanted                 // the generation that is wanted is made, if it is not the newest one
	takeOthers                 // those that others have made are taken as they are
)

// divide finds how a route is divided, and how it is to be.
func (r *Relay) divide(ctx context.Context, head Route, was *divided, how dividing) (*divided, []Route, error) {
	var streams []*partition.Stream
	for try := 0; ; try++ {
		list, err := partition.Find(ctx, r.js, r.cfg.Service, head.Name)
		if err != nil {
			return nil, nil, err
		}
		streams = partition.Running(list)
		if how == takeOthers && len(list) > 0 {
			break
		}
		if len(list) == 0 && was != nil { // it is made anew, from its start on, when it is certainly gone
			if _, err := r.js.Stream(ctx, was.Newest().Name()); err == nil {
				return nil, nil, fmt.Errorf("stream %s exists, but the server does not list it", was.Newest().Name())
			} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
				return nil, nil, err
			}
		}
		stream, err := r.placing.StreamOf(ctx, head.placed())
		if err != nil {
			return nil, nil, err
		}
		want := head.division(stream)
		if len(list) > 0 && streams[len(streams)-1].Equal(want.Layout) {
			break
		}
		if streams, err = r.maker().Next(ctx, streams, want, how == checkOnly); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) && try < 3 {
			continue // another instance was faster
		} else if err != nil {
			return nil, nil, err
		}
		break
	}
	d := &divided{head: head, Route: generations.New(r.js, head.Name, streams)}
	if len(streams) == 0 {
		return d, nil, nil
	}
	d.keepLives(was)
	return d, d.routes(), nil //nolint:gocritic // routes changes what d points to at most, and not d
}

// maker makes the streams of partitions.
func (r *Relay) maker() generations.Maker {
	return generations.Maker{Conn: r.nc, JS: r.js, API: r.api, Service: r.cfg.Service, Replicas: r.cfg.Replicas, Log: r.log}
}

// division is how the route is to be divided.
func (r Route) division(stream string) generations.Wanted {
	return generations.Wanted{Route: r.Name, Layout: r.layout(stream), Start: func(last uint64) (partition.Start, bool) {
		switch r.Start.Policy {
		case "new":
			return partition.Start{Sequence: last + 1}, true
		case "seq":
			return partition.Start{Sequence: r.Start.Seq}, true
		case "since":
			return partition.Start{Time: r.Start.Since}, true
		case "all":
			return partition.Start{Sequence: 1}, true
		}
		return partition.Start{}, false
	}}
}

// plannedDivision is what would become of the partitions of a route.
func (r *Relay) plannedDivision(ctx context.Context, head Route) (p planned.Divided, err error) {
	err = r.attempt(ctx, func(ctx context.Context) error {
		stream, err := r.placing.StreamOf(ctx, head.placed())
		if err == nil {
			p, err = r.maker().Planned(ctx, head.division(stream), r.placing.Assumed(stream))
		}
		return err
	})
	return p, err
}

// keepLives has the parts share handlers, and keep those that they have.
func (d *divided) keepLives(was *divided) {
	kept := func(h Handler) *foreign.Life {
		l := foreign.NewLife(h)
		l.Keep(true)
		return l
	}
	if was != nil && sameObject(was.head.Handler, d.head.Handler) {
		d.life = was.life
	} else {
		d.life = kept(d.head.Handler)
	}
	if f := d.head.Fallback; f == nil {
	} else if was != nil && was.head.Fallback != nil && sameObject(was.head.Fallback.Handler, f.Handler) {
		d.fallback = was.fallback
	} else {
		d.fallback = kept(f.Handler)
	}
}

// endLives stops handlers that no part has any more, and that the next one does not have.
func (d *divided) endLives(ctx context.Context, next *divided) {
	if next == nil {
		next = new(divided)
	}
	end := func(l, stays *foreign.Life, timeout time.Duration) {
		if l != nil && l != stays {
			l.Keep(false)
			_ = l.End(ctx, timeout)
		}
	}
	end(d.life, next.life, d.head.Timeout)
	if d.fallback != nil {
		end(d.fallback, next.fallback, d.head.Fallback.Timeout)
	}
}

// routes are those of the partitions, and notes their names.
func (d *divided) routes() (list []Route) {
	newest := d.Newest()
	for i, s := range d.Streams {
		var to *partition.Generation
		var between []partition.Generation
		if s != newest {
			to = new(newest.Generation)
			for _, b := range d.Streams[i+1 : len(d.Streams)-1] {
				between = append(between, b.Generation)
			}
		}
		for n := range s.Count {
			part := d.routeOf(s.Generation, n, to)
			part.part.Between = between
			list = append(list, part)
		}
	}
	d.parts = nil
	for _, rt := range list {
		d.parts = append(d.parts, rt.Name)
	}
	return list
}

func (d *divided) routeOf(g partition.Generation, n int, to *partition.Generation) Route {
	cfg := d.head
	cfg.part = &partOfRoute{Route: cfg.Name, Stream: g.Stream, Durable: g.Durable, Number: n, Of: g, To: to, After: n == 0 && len(d.Streams) > 1}
	cfg.Name, cfg.Stream, cfg.Durable, cfg.Subjects = g.RouteOf(n), g.Name(), g.DurableOf(n), []string{g.Part(n)}
	cfg.Start, cfg.Instances, cfg.Partitions = StartAll, InstancesOne, 0
	cfg.Stash.Bytes = max(cfg.Stash.Bytes/Bytes(g.Count), 1<<20) // which bounds the memory
	cfg.life, cfg.fallbackLife = d.life, d.fallback
	if to != nil {
		cfg.Limits, cfg.Batch, cfg.Fallback = nil, nil, nil
	}
	return cfg
}

// divideAll has routes with partitions run as their parts: those that have a stream.
func (r *Relay) divideAll(ctx context.Context) (faults []error) {
	var list []*route
	for _, rt := range r.routes.all() {
		if rt.cfg.Partitions == 0 {
			list = append(list, rt)
			continue
		}
		var d *divided
		var parts []Route
		err := r.troubles.Persist(ctx, "the partitions of route "+rt.cfg.Name, func(ctx context.Context) error {
			return r.attempt(ctx, func(ctx context.Context) (err error) {
				d, parts, err = r.divide(ctx, rt.cfg, nil, makeWanted)
				return err
			})
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
		r.divided.set(rt.cfg.Name, d)
		rt.group.Drain()
		for _, cfg := range parts {
			part := newRoute(r, cfg, r.cfg.Limits)
			r.enter(part)
			list = append(list, part)
		}
	}
	if len(faults) == 0 {
		r.routes.set(list)
	}
	return faults
}
