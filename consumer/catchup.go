package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/provision"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/supervisor"
)

// A route joins a durable that is there, or gets one more subject. The server widens the filter and goes on where the durable is: what the stream
// held before is passed. It is handed over to the route through the retry stream, as far as its start says. Package catchup keeps the account.

const (
	// changeLasts is for how long an instance has a durable for itself to change it, and handLasts to hand over what it has passed.
	changeLasts = 10 * time.Second
	handLasts   = 15 * time.Second
	// A turn hands over for handTurn at most, handBatch messages at a time, handAtOnce of them side by side, and only while fewer than
	// handRoom wait to be delivered to the routes: the rest waits in its stream.
	handTurn   = 10 * time.Second
	handBatch  = 256
	handAtOnce = 64
	handRoom   = 4096
	// handAgain is how long a message stays away that the durable delivers before it is handed over.
	handAgain = 200 * time.Millisecond
)

// catchUp is what a source knows of what its durable has passed.
type catchUp struct {
	record atomic.Pointer[catchup.Record] // nil: nothing
	busy   atomic.Bool
	began  time.Time     // of the pull loop only: when it last looked
	is     string        // of the watchdog only: what the durable was for when the account was read
	had    atomic.Uint64 // up to there the durable has delivered what the routes want, as it was last seen with all their subjects
}

func (s *source) passedBook() *catchup.Book { return catchup.NewBook(s.relay.ledgers) }

// gap are the messages that the routes of this configuration want, and that a durable as it is has passed, or would. The last message of the stream is
// last.
func (s *source) gap(have jetstream.ConsumerConfig, last uint64) (list []catchup.Range) {
	if s.due {
		return nil
	}
	filters, known := provision.Filters(have), []string(nil)
	if m := provision.MarkOf(have.Metadata); m.Service == s.relay.cfg.Service {
		known = m.Patterns()
	}
	for _, d := range s.patterns {
		start := d.route.cfg.Start
		if len(catchup.Gap(filters, known, []string{d.pattern})) == 0 {
			continue
		}
		g := catchup.Range{
			Pattern: d.pattern, Except: catchup.Except(slices.Concat(filters, known), d.pattern), Had: s.catchUp.had.Load(), Began: time.Now().UTC(),
		}
		switch start.Policy {
		case "new":
			g.From, g.Until = last+1, last
		case "seq":
			g.From, g.Until = start.Seq, last
		case "since":
			g.Since, g.Until = start.Since, last
		}
		list = append(list, g)
	}
	return list
}

// holds is how many messages of a range the stream has at most.
func (s *source) holds(ctx context.Context, g catchup.Range) (n uint64, err error) {
	err = ack.Subjects(ctx, s.relay.js, s.stream, g.Pattern, func(literal string, count int) {
		if g.Wants(literal) {
			n += uint64(count)
		}
	})
	return n, err
}

// mayWiden tells whether it was chosen where a route begins whose subjects the durable has passed.
func (s *source) mayWiden(ctx context.Context, stream jetstream.Stream, have jetstream.ConsumerConfig) error {
	queue := stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy
	for _, g := range s.gap(have, 0) {
		rt := s.routeOfPattern(g.Pattern)
		if policy := rt.cfg.Start.Policy; policy == "all" || policy != "" && !queue || s.catchUp.had.Load() > 0 {
			continue
		}
		n, err := s.holds(ctx, g)
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

// errChanging says that another instance has the durable for itself. It passes.
var errChanging = away.Soon(errors.New("another instance is changing the durable"))

// changeAlone changes a durable while no other instance does, and writes down what it passes by that. Without it, two instances that read the same
// configuration would each take away what the other one has added.
func (s *source) changeAlone(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	book, me := s.passedBook(), s.relay.cfg.Instance
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
	ranges := s.gap(have, info.State.LastSeq)
	for i := range ranges {
		if ranges[i].Held, err = s.holds(ctx, ranges[i]); err != nil {
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
	to, err := s.passedUpTo(ctx, stream, max(updated.CachedInfo().Delivered.Stream, passed), provision.Filters(have))
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
func (s *source) passedUpTo(ctx context.Context, stream jetstream.Stream, known uint64, former []string) (uint64, error) {
	now, err := stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	to := now.State.LastSeq
	for _, f := range former {
		m, err := s.relay.nextMessage(ctx, s.stream, f, known+1)
		if err != nil {
			return 0, err
		}
		if m != nil {
			to = min(to, m.Sequence-1)
		}
	}
	return to, nil
}

// readCatchUp reads the account when the source opens, before anything is pulled. What was begun by an instance that ended is bounded.
func (s *source) readCatchUp(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo) error {
	if s.due {
		return nil
	}
	if len(s.gap(info.Config, 0)) == 0 {
		s.catchUp.had.Store(max(s.catchUp.had.Load(), info.Delivered.Stream))
	}
	r, err := s.passedBook().Get(ctx, s.stream, s.durable)
	if err != nil {
		return err
	}
	if r != nil && !r.Created.Equal(info.Created) {
		r = nil
	}
	if r, err = s.boundLeft(ctx, r, stream, info, s.relay.cfg.Instance); err != nil {
		return err
	}
	s.catchUp.record.Store(r)
	return nil
}

// boundLeft bounds what an instance began that ended before it knew how far the durable goes: at the end of the stream, as what the durable delivers of
// that is handed over, too. What it did not get to is over. What this very instance (me) began before it was started again is left at once, and that of
// others when their claim is over.
func (s *source) boundLeft(ctx context.Context, r *catchup.Record, stream jetstream.Stream, info *jetstream.ConsumerInfo, me string) (*catchup.Record, error) {
	left := func(r *catchup.Record) bool {
		return r != nil && r.Created.Equal(info.Created) && len(r.Open()) > 0 && (r.Changing.By == me || time.Now().After(r.Changing.Until))
	}
	if !left(r) {
		return r, nil
	}
	now, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	return s.passedBook().Change(ctx, s.stream, s.durable, func(r *catchup.Record) (*catchup.Record, error) {
		if left(r) {
			r.Changing = catchup.Claim{}
			r.Bound(provision.Filters(info.Config), now.State.LastSeq)
			r.Drop()
			return r.OrNil(), nil
		}
		return r, nil
	})
}

// noteCatchUp reads the account again when the durable was changed by somebody else since it was read.
func (s *source) noteCatchUp(ctx context.Context, info *jetstream.ConsumerInfo) {
	if s.due {
		return
	}
	if len(s.gap(info.Config, 0)) == 0 {
		s.catchUp.had.Store(max(s.catchUp.had.Load(), info.Delivered.Stream))
	}
	is := fmt.Sprint(provision.Filters(info.Config), provision.MarkOf(info.Config.Metadata))
	if s.catchUp.is == is {
		return
	}
	if r, err := s.passedBook().Get(ctx, s.stream, s.durable); err == nil && (r == nil || r.Created.Equal(info.Created)) {
		s.catchUp.is = is
		s.catchUp.record.Store(r)
	}
}

// place of a message that the durable delivers.
func (s *source) place(d *ack.Delivery, literal string) catchup.Place {
	return s.catchUp.record.Load().Place(d.Sequence, d.Time, literal)
}

// passed settles a message that is handed over, or will be.
func (m *message) passed(place catchup.Place) {
	if place == catchup.Passed {
		m.done()
		return
	}
	_ = m.delivery.Nak(time.Now().Add(handAgain)) // fenced: somebody else has it
}
