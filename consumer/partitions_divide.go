package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/provision"
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
	d := &divided{head: head}
	d.behind.Store(-1)
	for try := 0; ; try++ {
		list, err := partition.Find(ctx, r.js, r.cfg.Service, head.Name)
		if err != nil {
			return nil, nil, err
		}
		d.streams = partition.Running(list)
		if how == takeOthers && len(list) > 0 {
			break
		}
		if len(list) == 0 && was != nil { // it is made anew, from its start on, when it is certainly gone
			if _, err := r.js.Stream(ctx, was.newest().Name()); err == nil {
				return nil, nil, fmt.Errorf("stream %s exists, but the server does not list it", was.newest().Name())
			} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
				return nil, nil, err
			}
		}
		stream, err := r.streamOf(ctx, head)
		if err != nil {
			return nil, nil, err
		}
		if want := head.layout(stream); len(list) == 0 || !d.newest().Equal(want) {
			if err = r.newGeneration(ctx, head, d, want, how); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) && try < 3 {
				continue // another instance was faster
			} else if err != nil {
				return nil, nil, err
			}
		}
		break
	}
	if len(d.streams) == 0 {
		return d, nil, nil
	}
	d.keepLives(was)
	d.tender.JS = r.js
	return d, d.routes(), nil //nolint:gocritic // routes changes what d points to at most, and not d
}

// newGeneration makes the stream of a new generation.
func (r *Relay) newGeneration(ctx context.Context, head Route, d *divided, want partition.Layout, how dividing) error {
	g := partition.Generation{Service: r.cfg.Service, Route: head.Name, Number: 1, Layout: want}
	from, err := r.js.Stream(ctx, want.Stream)
	if err != nil {
		return err
	}
	if err := copyable(from.CachedInfo().Config); err != nil {
		return err
	}
	var start partition.Start // of a later one: when the former ones are through
	if len(d.streams) > 0 {
		g.Number = d.newest().Number + 1
	} else if start, err = r.startOfCopies(ctx, head, from); err != nil {
		return err
	}
	if how == checkOnly {
		return nil
	}
	made, err := g.Make(ctx, r.js, start, r.cfg.Replicas)
	if err != nil {
		return fmt.Errorf("making stream %s: %w", g.Name(), err)
	}
	r.log.Info("made the stream of a route's partitions", "route", head.Name, "stream", g.Name(), "partitions", g.Count, "from", want.Stream, "start", start.String())
	d.streams = partition.Running(append(d.streams, made))
	return nil
}

// copyable tells whether a server can copy a stream.
func copyable(c jetstream.StreamConfig) error {
	if c.Retention != jetstream.LimitsPolicy {
		return fmt.Errorf("partitions: stream %s has retention %s, from which a server cannot copy safely; set retention to limits", c.Name, c.Retention)
	}
	return nil
}

// startOfCopies is where the first generation of a route begins: where its durable without partitions is, or where the configuration says.
func (r *Relay) startOfCopies(ctx context.Context, head Route, from jetstream.Stream) (partition.Start, error) {
	info := from.CachedInfo()
	consumer, err := from.Consumer(ctx, head.Durable)
	switch {
	case err == nil && provision.MarkOf(consumer.CachedInfo().Config.Metadata).Service == r.cfg.Service:
		floor := consumer.CachedInfo().AckFloor.Stream
		r.log.Warn("the route gets partitions, which begin at the ack floor of its durable; what was handled above the ack floor is handled again", "route", head.Name, "durable", head.Durable, "ack_floor", floor)
		return partition.Start{Sequence: floor + 1}, nil
	case err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrNotPullConsumer):
		return partition.Start{}, err
	}
	switch head.Start.Policy {
	case "new":
		return partition.Start{Sequence: info.State.LastSeq + 1}, nil
	case "seq":
		return partition.Start{Sequence: head.Start.Seq}, nil
	case "since":
		return partition.Start{Time: head.Start.Since}, nil
	case "all":
		return partition.Start{Sequence: 1}, nil
	}
	var n uint64
	for _, subj := range head.Subjects {
		more, _, err := audit.Matching(ctx, r.nc, r.api, info.Config.Name, subj)
		if err != nil {
			return partition.Start{}, err
		}
		n += more
	}
	if n > 0 {
		return partition.Start{}, fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and the route has no partitions yet: say where they begin (start: all, new, {since: <time>} or {seq: <n>})",
			info.Config.Name, n, strings.Join(head.Subjects, ", "))
	}
	return partition.Start{Sequence: info.State.LastSeq + 1}, nil
}

// planDivision is what would become of the partitions of a route.
func (r *Relay) planDivision(ctx context.Context, head Route) (p DividedPlan, err error) {
	err = r.attempt(ctx, func(ctx context.Context) error {
		stream, err := r.streamOf(ctx, head)
		if err != nil {
			return err
		}
		list, err := partition.Find(ctx, r.js, r.cfg.Service, head.Name)
		if err != nil {
			return err
		}
		g := partition.Generation{Service: r.cfg.Service, Route: head.Name, Number: 1, Layout: head.layout(stream)}
		p = DividedPlan{Route: head.Name, Does: DurableMade, Partitions: g.Count}
		switch n := len(list); {
		case n == 0 && r.preview.makes(stream) != nil:
			if err := copyable(*r.preview.makes(stream)); err != nil {
				return err
			}
			p.Start = partition.Start{Sequence: 1}.String()
		case n == 0:
			from, err := r.js.Stream(ctx, stream)
			if err != nil {
				return err
			}
			if err := copyable(from.CachedInfo().Config); err != nil {
				return err
			}
			start, err := r.startOfCopies(ctx, head, from)
			if err != nil {
				return err
			}
			p.Start = start.String()
		case list[n-1].Equal(g.Layout):
			g, p.Does, p.Before = list[n-1].Generation, DurableStays, g.Count
		default:
			g.Number, p.Does, p.Before = list[n-1].Number+1, DurableChanged, list[n-1].Count
		}
		p.Stream = g.Name()
		return nil
	})
	return p, err
}

// keepLives has the parts share handlers, and keep those that they have.
func (d *divided) keepLives(was *divided) {
	kept := func(h Handler) *sharedLife {
		l := newSharedLife(h)
		if l != nil {
			l.kept = true
		}
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
	end := func(l, stays *sharedLife, timeout time.Duration) {
		if l != nil && l != stays {
			l.kept = false
			_ = l.end(ctx, timeout)
		}
	}
	end(d.life, next.life, d.head.Timeout)
	if d.fallback != nil {
		end(d.fallback, next.fallback, d.head.Fallback.Timeout)
	}
}

// routes are those of the partitions, and notes their names.
func (d *divided) routes() (list []Route) {
	newest := d.newest()
	for i, s := range d.streams {
		var to *partition.Generation
		var between []partition.Generation
		if s != newest {
			to = new(newest.Generation)
			for _, b := range d.streams[i+1 : len(d.streams)-1] {
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
	cfg.part = &partOfRoute{Route: cfg.Name, Stream: g.Stream, Durable: g.Durable, Number: n, Of: g, To: to, After: n == 0 && len(d.streams) > 1}
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
	for _, rt := range r.all() {
		if rt.cfg.Partitions == 0 {
			list = append(list, rt)
			continue
		}
		var d *divided
		var parts []Route
		err := r.persist(ctx, "the partitions of route "+rt.cfg.Name, func(ctx context.Context) error {
			return r.attempt(ctx, func(ctx context.Context) (err error) {
				d, parts, err = r.divide(ctx, rt.cfg, nil, makeWanted)
				return err
			})
		})
		var none *noStream
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
		r.routes.Store(&list)
	}
	return faults
}
