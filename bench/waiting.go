package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// waitingFor is how long the messages wait that fresh ones pass: longer than the job takes. relay would park all of them
// for a wait like this; its route is told not to, so that they wait as those with shorter delays do, some in the durable
// and what is too much for it in the retry stream.
const waitingFor = 2 * time.Hour

// besideWaiting measures fresh messages beside those that wait for their retry. The contestants:
//
//   - library: its waiting messages wait as relay has them wait;
//   - plain: nothing waits in its durable, but relay's waiting messages are on the same server;
//   - nak: as many messages wait in its durable, each with a NakWithDelay of its own, on a server of its own.
func (b *bench) besideWaiting(ctx context.Context, j *job) error {
	waiting, n := j.waiting, b.size(j.n)
	if b.most > 0 {
		waiting = min(waiting, b.most)
	}
	worlds := make(map[string]*world)
	for _, whose := range []string{"library", "nak"} {
		w, err := newWorld(ctx, j.streamSubjects()...)
		if err != nil {
			return err
		}
		defer w.close()
		worlds[whose] = w
		if waiting == 0 {
			continue
		}
		begun := time.Now()
		if err := b.haveWait(ctx, w, j, whose, waiting); err != nil {
			return fmt.Errorf("%s: having %d messages wait: %w", whose, waiting, err)
		}
		b.note(fmt.Sprintf("%s: %d messages wait for %s after %v", j.name, waiting, whose, time.Since(begun).Round(100*time.Millisecond)))
	}
	worlds["plain"] = worlds["library"]
	return b.inTurns(ctx, j, func(who string, round int) (sample, error) {
		w := worlds[who]
		s := b.waitingSpec(w, j, who, waiting)
		durables, _ := s.durables()
		outstanding := 0
		if who == "plain" {
			s.Contestant, s.Run, s.Start = "plain", fmt.Sprintf("plain-r%d", round), uint64(w.stored)+1
			defer func() { _ = w.js.DeleteConsumer(ctx, streamName, s.Run) }()
		} else if waiting > 0 {
			before, err := w.state(ctx, durables)
			if err != nil {
				return sample{}, err
			}
			// What the other one drained on the same server is new to this one.
			if before.pending > 0 {
				if _, err := b.drain(ctx, w, s, before.pending, before.out, time.Minute); err != nil {
					return sample{}, err
				}
			}
			outstanding = before.out
		} else {
			s.Run = fmt.Sprintf("%s-r%d", who, round)
			s.Start = uint64(w.stored) + 1
		}
		if err := w.fill(ctx, n, j.subjects, j.size, b.seed); err != nil {
			return sample{}, err
		}
		return b.drain(ctx, w, s, n, outstanding, b.atMost(j.atMost))
	})
}

func (b *bench) waitingSpec(w *world, j *job, who string, waiting int) *spec {
	s := b.spec(w, j, who, 0)
	s.Handler.Delay = waitingFor
	if who == "nak" {
		s.Contestant = "plain"
		s.MaxAckPending = waiting + defaultMaxAckPending
	}
	return s
}

// haveWait has n messages fail, and returns when all of them wait for their next try.
func (b *bench) haveWait(ctx context.Context, w *world, j *job, whose string, n int) error {
	s := b.waitingSpec(w, j, whose, n)
	if whose == "nak" {
		s.Contestant = "nak"
	}
	return b.refuseAll(ctx, w, j, s, n)
}

// refuseAll publishes n messages, and has a contestant that is otherwise like s refuse them.
func (b *bench) refuseAll(ctx context.Context, w *world, j *job, like *spec, n int) error {
	if err := w.fill(ctx, n, j.subjects, j.size, b.seed); err != nil {
		return err
	}
	s := *like
	s.Handler.Kind, s.Handler.Until = "refuse", n
	c, err := b.enter(ctx, &s)
	if err != nil {
		return err
	}
	var done string
	if err := c.hear(&done, 15*time.Minute); err != nil {
		c.giveUp()
		return err
	}
	// All have failed; now nothing may be under way any more. What is parked is on the retry stream, the rest outstanding.
	durables, _ := s.durables()
	calm, was := time.Now(), -1
	for deadline := calm.Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		now, err := w.state(ctx, durables)
		out := now.out
		parked := 0
		if err == nil {
			parked, err = w.parked(ctx)
		}
		if err == nil && time.Now().After(deadline) {
			err = fmt.Errorf("%d in the durable and %d parked", out, parked)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			c.giveUp()
			return err
		}
		if out+parked != n || out != was {
			calm, was = time.Now(), out
		}
		if time.Since(calm) > time.Second {
			break
		}
	}
	_, err = c.leave(ctx)
	return err
}

// stormEnd measures messages that failed before and are all due at once, and as many fresh ones.
func (b *bench) stormEnd(ctx context.Context, j *job) error {
	w, err := newWorld(ctx, j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	w.retries = true
	n := b.size(j.n)
	h := j.handler
	p, err := h.endpoint(ctx)
	if err != nil {
		return err
	}
	defer p.end()
	// None may be due before the last has failed.
	h.Delay = 3*time.Second + time.Duration(n)*400*time.Microsecond
	return b.inTurns(ctx, j, func(who string, round int) (r sample, err error) {
		s := b.spec(w, j, who, round)
		s.Contestant, s.Handler, s.Start = "library", h, uint64(w.stored)+1
		durables, _ := s.durables()
		defer func() {
			retry, found := w.js.Stream(ctx, "RELAY_RETRY")
			if found == nil { // what is left of a turn whose time was over
				err = errors.Join(err, retry.Purge(ctx))
			}
			err = errors.Join(err, w.forget(ctx, durables))
		}()
		if who == "library" {
			if err := w.fill(ctx, n, j.subjects, j.size, b.seed); err != nil {
				return r, err
			}
			return b.drain(ctx, w, s, n, 0, b.atMost(j.atMost))
		}
		if err := b.refuseAll(ctx, w, j, s, n); err != nil {
			return r, err
		}
		if err := pause(ctx, h.Delay); err != nil {
			return r, err
		}
		return b.drainSince(ctx, w, s, n, 0, b.atMost(j.atMost), func(s state) bool { return s.left() < n }, nil)
	})
}

// parked is how many messages are on relay's retry stream.
func (w *world) parked(ctx context.Context) (int, error) {
	s, err := w.js.Stream(ctx, "RELAY_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}
