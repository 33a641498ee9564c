package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/retry"
)

// Handing over what a durable has passed, a turn at a time. What there is to hand over is in catchup.go.

// soon hands over what the durable has passed, a turn at a time. It does not block.
func (c *catchUp) soon(now time.Time) {
	if c.record.Load() == nil || now.Sub(c.began) < time.Second || c.busy.Swap(true) {
		return
	}
	c.began = now
	c.tidying.Go(func() {
		defer c.busy.Store(false)
		const what = "hand-over of messages that the durable has passed"
		ctx, cancel := context.WithTimeout(c.routes[0].work, handTurn+settleTimeout)
		defer cancel()
		err := c.handOver(ctx)
		for _, rt := range c.routes {
			if err != nil && c.routes[0].work.Err() == nil {
				rt.troubles.Note(what, fmt.Errorf("cannot hand over messages that the durable has passed; retrying: %w", err), time.Now())
			} else {
				rt.troubles.Mended(what, time.Now())
			}
		}
	})
}

// handOver is a turn.
func (c *catchUp) handOver(ctx context.Context) error {
	book, me, over := c.passedBook(), c.relay.cfg.Instance, time.Now().Add(handTurn)
	note := func(change func(*catchup.Record) *catchup.Record) (*catchup.Record, error) {
		r, err := book.Change(ctx, c.stream, c.durable, func(r *catchup.Record) (*catchup.Record, error) {
			if r == nil || !r.Created.Equal(c.created) || !r.Handing.Take(me, time.Now(), handLasts) {
				return nil, errChanging
			}
			return change(r), nil
		})
		if err == nil {
			c.record.Store(r)
		}
		return r, err
	}
	r, err := book.Get(ctx, c.stream, c.durable)
	if err != nil {
		return err
	}
	if r.IsOver() || !r.Created.Equal(c.created) {
		c.record.Store(nil)
		return nil
	}
	if len(r.Open()) > 0 {
		_, stream, info, err := c.ask(ctx)
		if err != nil {
			return err
		}
		if r, err = c.boundLeft(ctx, r, stream, info, ""); err != nil || r == nil {
			return err
		}
	}
	c.record.Store(r)
	if !r.Handing.Take(me, time.Now(), handLasts) {
		return nil // another instance does it
	}
	if r.IsDone() {
		_, _, info, err := c.ask(ctx)
		if err != nil {
			return err
		}
		if info.AckFloor.Stream >= r.Last() || info.NumPending == 0 && info.NumAckPending == 0 {
			_, err = note(func(r *catchup.Record) *catchup.Record {
				r.Handing = catchup.Claim{}
				return r.Over(info.Delivered.Stream)
			})
		}
		return err
	}
	if r, err = note(func(r *catchup.Record) *catchup.Record { return r }); errors.Is(err, errChanging) {
		return nil
	} else if err != nil {
		return err
	}
	release := func(r *catchup.Record) *catchup.Record { r.Handing = catchup.Claim{}; return r }
	for i := range r.Ranges {
		for g := r.Ranges[i]; g.To > 0 && !g.IsDone(); {
			room, err := c.handRoom(ctx)
			if err != nil {
				return err
			}
			if !room || time.Now().After(over) {
				_, err := note(release)
				return err
			}
			n, done, err := c.handBatch(ctx, g)
			if err != nil {
				_, _ = note(release)
				return err
			}
			pattern := g.Pattern
			next, err := note(func(r *catchup.Record) *catchup.Record { r.Progress(pattern, done, n); return r })
			if err != nil {
				return err
			}
			j := slices.IndexFunc(next.Ranges, func(h catchup.Range) bool { return h.Pattern == pattern })
			if j < 0 {
				break // the pattern was taken away
			}
			if g = next.Ranges[j]; g.IsDone() {
				c.log.Info("all that the durable had passed is handed over", "subjects", pattern, "messages", g.Handed)
			}
		}
	}
	_, err = note(release)
	return err
}

// handRoom tells whether few enough messages wait to be delivered to the routes from the retry stream.
func (c *catchUp) handRoom(ctx context.Context) (bool, error) {
	for _, rt := range c.routes {
		due, err := c.relay.js.Consumer(ctx, c.relay.retries.Name(), retry.DueDurable(rt.cfg.Name, c.stream))
		if err != nil {
			return false, err
		}
		if i := due.CachedInfo(); i.NumPending+uint64(i.NumAckPending) > handRoom {
			return false, nil
		}
	}
	return true, nil
}

// handBatch hands over the next messages of a range. It returns how many these are, and up to which sequence all are handed over.
func (c *catchUp) handBatch(ctx context.Context, g catchup.Range) (n int, done uint64, err error) {
	stream, err := c.relay.js.Stream(ctx, c.stream)
	if err != nil {
		return 0, 0, err
	}
	queue := stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy
	handing, ctx := errgroup.WithContext(ctx)
	handing.SetLimit(handAtOnce)
	for seq := g.Next(); n < handBatch && ctx.Err() == nil; {
		var m *storedMessage
		if m, err = c.relay.nextMessage(ctx, c.stream, g.Pattern, seq); err != nil {
			break
		}
		if m == nil || m.Sequence > g.To {
			done = g.To
			break
		}
		seq, done = m.Sequence+1, m.Sequence
		if !g.Wants(m.Subject) || m.Time.Before(g.Since) {
			continue
		}
		n++
		handing.Go(func() error {
			if err := c.bring(ctx, m); err != nil || !queue {
				return err
			}
			// On a work queue nobody else may take it, and it would lie there for ever.
			if err := stream.DeleteMsg(ctx, m.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
				return fmt.Errorf("removing message %d of work queue %s, which was handed over (relay must be allowed to publish to %sSTREAM.MSG.DELETE.%s): %w",
					m.Sequence, c.stream, c.relay.api, c.stream, err)
			}
			return nil
		})
	}
	if failed := handing.Wait(); failed != nil {
		err = failed
	}
	return n, done, err
}

// bring stores a message in the retry stream for its route.
func (c *catchUp) bring(ctx context.Context, m *storedMessage) error {
	header := nats.Header{}
	if len(m.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			c.log.Warn("the headers of a message that is handed over cannot be read; it goes without them", "subject", m.Subject, "seq", m.Sequence, "error", err)
		}
		header = h
	}
	to, room := retry.NoRoute, c.routes[0].parkRoom(1)
	if rt := c.routeOf(m.Subject); rt != nil {
		to, room = rt.cfg.Name, rt.parkRoom(1)
	}
	err := c.relay.retries.Bring(ctx, retry.Origin{
		Route: to, Stream: c.stream, Consumer: c.durable, Sequence: m.Sequence, Time: m.Time, Subject: m.Subject,
	}, header, m.Data, room)
	if errors.Is(err, nats.ErrMaxPayload) {
		c.log.Error("a message that the durable has passed is too large for the retry stream with relay's headers: it stays in its stream and is not handled; raise max_payload of the servers, and publish it again",
			"route", to, "subject", m.Subject, "seq", m.Sequence, "bytes", len(m.Data))
		return nil
	}
	return err
}

// catchUp tells how much of what the durable had passed is handed over; nil when all is.
func (rt *route) catchUp() *control.CatchUpStatus {
	var c control.CatchUpStatus
	for _, s := range rt.relay.openSources() {
		r := s.catchUp.record.Load()
		if r == nil || !s.serves(rt) {
			continue
		}
		for _, g := range r.Ranges {
			if g.IsDone() || s.routeOfPattern(g.Pattern) != rt {
				continue
			}
			c.Subjects = append(c.Subjects, g.Pattern)
			c.Handed, c.Held = c.Handed+g.Handed, c.Held+g.Held
			if c.Since.IsZero() || g.Began.Before(c.Since) {
				c.Since = g.Began
			}
		}
	}
	if len(c.Subjects) == 0 {
		return nil
	}
	return &c
}
