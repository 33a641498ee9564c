package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/supervisor"
)

// Giving a durable more subjects, and writing down what it passes by that. Package catchup keeps the account.

// mayWiden tells whether it was chosen where a route begins whose subjects the durable has passed.
func (s *setup) mayWiden(ctx context.Context, stream jetstream.Stream, have jetstream.ConsumerConfig) error {
	queue := stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy
	for _, g := range s.catchUp.gap(have, 0) {
		rt := s.routeOfPattern(g.Pattern)
		if policy := rt.cfg.Start.Policy; policy == "all" || policy != "" && !queue || s.catchUp.had.Load() > 0 {
			continue
		}
		n, err := s.catchUp.holds(ctx, g)
		if err != nil {
			return err
		}
		switch {
		case n == 0:
		case queue:
			return fmt.Errorf("start: stream %s is a work queue and holds %d messages for %s, which durable %s has passed: nobody else can have them, so set start: all for route %s",
				s.stream, n, g.Pattern, s.durable, rt.cfg.Name)
		default:
			return fmt.Errorf("start: stream %s already holds %d messages for %s, which durable %s has passed: say where route %s begins with them (start: all, new, {since: <time>} or {seq: <n>})",
				s.stream, n, g.Pattern, s.durable, rt.cfg.Name)
		}
	}
	return nil
}

// changeAlone changes a durable while no other instance does, and writes down what it passes by that. Without it, two instances that read the same
// configuration would each take away what the other one has added.
func (s *setup) changeAlone(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	book, me := s.catchUp.passedBook(), s.relay.cfg.Instance
	consumer, err := stream.Consumer(ctx, s.durable)
	if err != nil {
		return nil, err
	}
	created := consumer.CachedInfo().Created
	for {
		_, err := book.Change(ctx, s.stream, s.durable, func(r *catchup.Record) (*catchup.Record, error) {
			if r == nil || !r.Created.Equal(created) {
				r = &catchup.Record{Created: created}
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
		pause(ctx, 50*time.Millisecond)
	}
	finish := func(then func(*catchup.Record)) error {
		r, err := book.Change(ctx, s.stream, s.durable, func(r *catchup.Record) (*catchup.Record, error) {
			if r == nil {
				r = &catchup.Record{Created: created}
			}
			if !r.Created.Equal(created) {
				return r, nil
			}
			then(r)
			r.Changing = catchup.Claim{}
			return r.OrNil(), nil
		})
		if err == nil {
			s.catchUp.record.Store(r)
		}
		return err
	}
	if consumer, err = stream.Consumer(ctx, s.durable); err != nil {
		return nil, err
	}
	if !provision.Same(consumer.CachedInfo().Config, have) {
		if err := finish(func(*catchup.Record) {}); err != nil {
			return nil, err
		}
		return s.compare(ctx, stream, consumer) // somebody was first
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	ranges := s.catchUp.gap(have, info.State.LastSeq)
	for i := range ranges {
		if ranges[i].Held, err = s.catchUp.holds(ctx, ranges[i]); err != nil {
			return nil, err
		}
	}
	before := consumer.CachedInfo()
	passed := uint64(0) // by being widened before
	r, err := book.Change(ctx, s.stream, s.durable, func(r *catchup.Record) (*catchup.Record, error) {
		if r == nil || !r.Created.Equal(created) || !r.Changing.Take(me, time.Now(), changeLasts) {
			return nil, errChanging
		}
		passed = r.MayHavePassed()
		r.Begin(ranges...)
		for _, p := range provision.MarkOf(have.Metadata).Patterns() {
			if len(catchup.Gap(provision.Filters(want), nil, []string{p})) > 0 {
				r.Leave(p, before.Delivered.Stream)
			}
		}
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	s.catchUp.record.Store(r)
	updated, err := s.update(ctx, stream, have, want)
	if err != nil {
		return nil, err // the ranges stay: they begin when the durable is widened
	}
	to, err := s.catchUp.passedUpTo(ctx, stream, max(updated.CachedInfo().Delivered.Stream, passed), provision.Filters(have))
	if err != nil {
		return nil, err
	}
	err = finish(func(r *catchup.Record) {
		for _, g := range ranges { // it took so long that another instance took it for left
			if !slices.ContainsFunc(r.Ranges, func(h catchup.Range) bool { return h.Pattern == g.Pattern }) {
				r.Begin(g)
			}
		}
		r.Bound(provision.Filters(updated.CachedInfo().Config), to)
	})
	for _, g := range ranges {
		if g.Held > 0 && g.Next() <= to && err == nil {
			rt := s.routeOfPattern(g.Pattern)
			rt.log.Info("the durable has passed messages that the route wants now; they are handed over to it through the retry stream",
				"subjects", g.Pattern, "start", rt.cfg.Start.String(), "held", g.Held)
			if rt.cfg.Order == supervisor.OrderKey {
				rt.log.Warn("messages that are handed over are not in order with those that the durable delivers", "subjects", g.Pattern)
			}
		}
	}
	return updated, err
}

// passedUpTo is the last sequence that a durable may have passed whose filter has just been widened. The server goes on at most at the first message
// that the former filter lets through and that the durable has neither delivered nor passed, as it did up to known at most; without one, at the end of the stream. A
// sequence that is too high costs time, and skips and repeats nothing: what the durable delivers of a range is settled as passed.
func (c *catchUp) passedUpTo(ctx context.Context, stream jetstream.Stream, known uint64, former []string) (uint64, error) {
	now, err := stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	to := now.State.LastSeq
	for _, f := range former {
		m, err := c.relay.nextMessage(ctx, c.stream, f, known+1)
		if err != nil {
			return 0, err
		}
		if m != nil {
			to = min(to, m.Sequence-1)
		}
	}
	return to, nil
}
