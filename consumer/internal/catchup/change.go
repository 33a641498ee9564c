package catchup

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/transient"
)

// Change is what became of a change of a durable.
type Change struct {
	Consumer jetstream.Consumer
	// SomebodyElse says that somebody else changed it first: it is not changed.
	SomebodyElse bool
	// Passed is what the durable has passed by being changed, and what is handed over.
	Passed []Range
}

// Change has update change a durable from have to want while no other instance does, and writes down what it passes by that. It waits for an instance
// that is about it.
func (c *CatchUp) Change(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig, update func() (jetstream.Consumer, error)) (*Change, error) {
	book, me := c.cfg.Book(), c.cfg.Instance
	consumer, err := stream.Consumer(ctx, c.cfg.Durable)
	if err != nil {
		return nil, err
	}
	created := consumer.CachedInfo().Created
	for {
		_, err := book.Change(ctx, c.cfg.Stream, c.cfg.Durable, func(r *Record) (*Record, error) {
			if r == nil || !r.Created.Equal(created) {
				r = &Record{Created: created}
			}
			if !r.Changing.Take(me, time.Now(), changeLasts) {
				return nil, errChanging
			}
			return r, nil
		})
		if err == nil {
			break
		}
		if !errors.Is(err, errChanging) || ctx.Err() != nil {
			return nil, err
		}
		transient.Pause(ctx, 50*time.Millisecond)
	}
	finish := func(then func(*Record)) error {
		r, err := book.Change(ctx, c.cfg.Stream, c.cfg.Durable, func(r *Record) (*Record, error) {
			if r == nil {
				r = &Record{Created: created}
			}
			if !r.Created.Equal(created) {
				return r, nil
			}
			then(r)
			r.Changing = Claim{}
			return r.OrNil(), nil
		})
		if err == nil {
			c.record.Store(r)
		}
		return err
	}
	if consumer, err = stream.Consumer(ctx, c.cfg.Durable); err != nil {
		return nil, err
	}
	if !provision.Same(consumer.CachedInfo().Config, have) {
		if err := finish(func(*Record) {}); err != nil {
			return nil, err
		}
		return &Change{Consumer: consumer, SomebodyElse: true}, nil
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	ranges := c.Gap(have, info.State.LastSeq)
	for i := range ranges {
		if ranges[i].Held, err = c.Holds(ctx, ranges[i]); err != nil {
			return nil, err
		}
	}
	before := consumer.CachedInfo()
	passed := uint64(0) // by being widened before
	r, err := book.Change(ctx, c.cfg.Stream, c.cfg.Durable, func(r *Record) (*Record, error) {
		if r == nil || !r.Created.Equal(created) || !r.Changing.Take(me, time.Now(), changeLasts) {
			return nil, errChanging
		}
		passed = r.MayHavePassed()
		r.Begin(ranges...)
		for _, p := range provision.MarkOf(have.Metadata).Patterns() {
			if len(Gap(provision.Filters(want), nil, []string{p})) > 0 {
				r.Leave(p, before.Delivered.Stream)
			}
		}
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	c.record.Store(r)
	updated, err := update()
	if err != nil {
		return nil, err // the ranges stay: they begin when the durable is widened
	}
	to, err := c.passedUpTo(ctx, stream, max(updated.CachedInfo().Delivered.Stream, passed), provision.Filters(have))
	if err != nil {
		return nil, err
	}
	err = finish(func(r *Record) {
		for _, g := range ranges { // it took so long that another instance took it for left
			if !slices.ContainsFunc(r.Ranges, func(h Range) bool { return h.Pattern == g.Pattern }) {
				r.Begin(g)
			}
		}
		r.Bound(provision.Filters(updated.CachedInfo().Config), to)
	})
	if err != nil {
		return &Change{Consumer: updated}, err
	}
	done := &Change{Consumer: updated}
	for _, g := range ranges {
		if g.Held > 0 && g.Next() <= to {
			done.Passed = append(done.Passed, g)
		}
	}
	return done, nil
}

// passedUpTo is the last sequence that a durable may have passed whose filter has just been widened. The server goes on at most at the first message
// that the former filter lets through and that the durable has neither delivered nor passed, as it did up to known at most; without one, at the end of the stream. A
// sequence that is too high costs time, and skips and repeats nothing: what the durable delivers of a range is settled as passed.
func (c *CatchUp) passedUpTo(ctx context.Context, stream jetstream.Stream, known uint64, former []string) (uint64, error) {
	now, err := stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	to := now.State.LastSeq
	for _, f := range former {
		m, err := looks.Next(ctx, c.cfg.Conn, c.cfg.API, c.cfg.Stream, f, known+1)
		if err != nil {
			return 0, err
		}
		if m != nil {
			to = min(to, m.Sequence-1)
		}
	}
	return to, nil
}
