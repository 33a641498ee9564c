package catchup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/removal"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/relaymq/relay/internal/retry"
)

// Handing over what a durable has passed, a turn at a time. What there is to hand over is in go.

// Soon hands over what the durable has passed, a turn at a time. It does not block.
func (c *CatchUp) Soon(now time.Time) {
	if c.record.Load() == nil || now.Sub(c.began) < time.Second || c.busy.Swap(true) {
		return
	}
	c.began = now
	c.cfg.Pool.Go(func() {
		defer c.busy.Store(false)
		work := c.cfg.Work()
		ctx, cancel := context.WithTimeout(work, handTurn+askTimeout)
		defer cancel()
		err := c.handOver(ctx)
		if work.Err() != nil {
			err = nil
		}
		c.cfg.Tell(err)
	})
}

// handOver is a turn.
func (c *CatchUp) handOver(ctx context.Context) error {
	book, me, over := c.cfg.Book(), c.cfg.Instance, time.Now().Add(handTurn)
	note := func(change func(*Record) *Record) (*Record, error) {
		r, err := book.Change(ctx, c.cfg.Stream, c.cfg.Durable, func(r *Record) (*Record, error) {
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
	r, err := book.Get(ctx, c.cfg.Stream, c.cfg.Durable)
	if err != nil {
		return err
	}
	if r.IsOver() || !r.Created.Equal(c.created) {
		c.record.Store(nil)
		return nil
	}
	if len(r.Open()) > 0 {
		stream, info, err := c.cfg.Ask(ctx)
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
		_, info, err := c.cfg.Ask(ctx)
		if err != nil {
			return err
		}
		if info.AckFloor.Stream >= r.Last() || info.NumPending == 0 && info.NumAckPending == 0 {
			_, err = note(func(r *Record) *Record {
				r.Handing = Claim{}
				return r.Over(info.Delivered.Stream)
			})
		}
		return err
	}
	if r, err = note(func(r *Record) *Record { return r }); errors.Is(err, errChanging) {
		return nil
	} else if err != nil {
		return err
	}
	release := func(r *Record) *Record { r.Handing = Claim{}; return r }
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
			next, err := note(func(r *Record) *Record { r.Progress(pattern, done, n); return r })
			if err != nil {
				return err
			}
			j := slices.IndexFunc(next.Ranges, func(h Range) bool { return h.Pattern == pattern })
			if j < 0 {
				break // the pattern was taken away
			}
			if g = next.Ranges[j]; g.IsDone() {
				c.cfg.Log.Info("all messages that the durable had passed are handed over", "subjects", pattern, "messages", g.Handed)
			}
		}
	}
	_, err = note(release)
	return err
}

// handRoom tells whether few enough messages wait to be delivered to the routes from the retry stream.
func (c *CatchUp) handRoom(ctx context.Context) (bool, error) {
	for _, route := range c.cfg.Routes() {
		due, err := c.cfg.JS.Consumer(ctx, c.cfg.Retry().Name(), retry.DueDurable(route, c.cfg.Stream))
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
func (c *CatchUp) handBatch(ctx context.Context, g Range) (n int, done uint64, err error) {
	stream, err := c.cfg.JS.Stream(ctx, c.cfg.Stream)
	if err != nil {
		return 0, 0, err
	}
	queue := stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy
	handing, ctx := errgroup.WithContext(ctx)
	handing.SetLimit(handAtOnce)
	for seq := g.Next(); n < handBatch && ctx.Err() == nil; {
		var m *looks.Message
		if m, err = looks.Next(ctx, c.cfg.Conn, c.cfg.API, c.cfg.Stream, g.Pattern, seq); err != nil {
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
			if err := removal.Delete(ctx, stream, m.Sequence); err != nil {
				return fmt.Errorf("removing message %d of work queue %s, which was handed over (relay must be allowed to publish to %sSTREAM.MSG.DELETE.%s): %w",
					m.Sequence, c.cfg.Stream, c.cfg.API, c.cfg.Stream, err)
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
func (c *CatchUp) bring(ctx context.Context, m *looks.Message) error {
	header := nats.Header{}
	if len(m.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			c.cfg.Log.Warn("cannot read the headers of a message; it is handed over without them", "subject", m.Subject, "seq", m.Sequence, "error", err)
		}
		header = h
	}
	to, room := c.cfg.Target(m.Subject)
	to = cmp.Or(to, retry.NoRoute)
	err := c.cfg.Retry().Bring(ctx, retry.Origin{
		Route: to, Stream: c.cfg.Stream, Consumer: c.cfg.Durable, Sequence: m.Sequence, Time: m.Time, Subject: m.Subject,
	}, header, m.Data, room)
	if errors.Is(err, nats.ErrMaxPayload) {
		c.cfg.Log.Error("a message that the durable has passed is too large for the retry stream with relay's headers: it stays in its stream and is not handled; raise max_payload of the servers, and publish it again",
			"route", to, "subject", m.Subject, "seq", m.Sequence, "bytes", len(m.Data))
		return nil
	}
	return err
}
