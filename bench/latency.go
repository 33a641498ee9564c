package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// warmUp is how long messages flow before their latency counts.
const warmUp = 1500 * time.Millisecond

// latency measures from the publisher's clock to the handler's, which is the same. The publisher is a process of its own
// and keeps its pace whatever happens.
func (b *bench) latency(ctx context.Context, j *job) error {
	w, err := newWorld(ctx, j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	if b.peak == 0 {
		if _, err := b.underLoad(ctx, w, j, "plain", 0, 0); err != nil {
			return fmt.Errorf("peak rate: %w", err)
		}
		b.note(fmt.Sprintf("peak rate from a publisher to plain nats.go: %.0f msg/s", b.peak))
	}
	return b.inTurns(ctx, j, func(who string, round int) (sample, error) {
		return b.underLoad(ctx, w, j, who, round, b.peak*j.percent/100)
	})
}

// underLoad has a contestant handle what is published at this rate. With a rate of zero it finds the peak.
func (b *bench) underLoad(ctx context.Context, w *world, j *job, who string, round int, rate float64) (r sample, err error) {
	begin := time.Now()
	s := b.spec(w, j, who, round)
	s.Run = fmt.Sprintf("%s-%d", who, begin.UnixMilli())
	s.Handler = handlerSpec{Kind: "latency", Warm: begin.Add(warmUp)}
	c, err := b.enter(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			c.giveUp()
		}
	}()
	durables, _ := s.durables()
	_, from, err := w.await(ctx, c, durables, func(state) bool { return true })
	if err != nil {
		return r, err
	}
	last := warmUp + b.last
	p, err := play(ctx, "publisher", pace{URL: w.url, Subjects: j.subjects, Size: j.size, Rate: rate, For: last, Seed: b.seed})
	if err != nil {
		return r, err
	}
	defer p.stop(nil)
	var did paced
	if err := p.hear(&did, last+20*time.Second); err != nil {
		return r, fmt.Errorf("publisher: %w", err)
	}
	to := from
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if to, err = w.look(ctx, c, durables); err != nil {
			return r, err
		}
		if to.left == 0 {
			break
		}
		if time.Now().After(deadline) {
			return r, fmt.Errorf("%d messages left 10 s after the last was published", to.left)
		}
	}
	r = sample{
		Contestant: who, Messages: did.Sent, Seconds: did.Seconds, CPU: to.cpu - from.cpu, Handled: did.Sent, RSS: c.peakRSS(),
		Offered: float64(did.Sent) / did.Seconds, Late: did.Late,
	}
	said, err := c.leave(ctx)
	if err != nil {
		return r, err
	}
	if rate == 0 {
		b.peak = float64(did.Sent) / to.at.Sub(from.at).Seconds()
	}
	r.Latency, r.Mallocs = said.Latency, said.Mallocs
	stream, err2 := w.js.Stream(ctx, streamName)
	if err2 == nil {
		err2 = stream.Purge(ctx)
	}
	return r, errors.Join(err2, w.forget(ctx, durables))
}

// idle has a service wait for messages that do not come.
func (b *bench) idle(ctx context.Context, j *job) error {
	w, err := newWorld(ctx, j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	rounds := b.rounds
	defer func() { b.rounds = rounds }()
	b.rounds = 1 // long enough
	return b.inTurns(ctx, j, func(who string, round int) (r sample, err error) {
		s := b.spec(w, j, who, round)
		c, err := b.enter(ctx, s)
		if err != nil {
			return r, err
		}
		durables, _ := s.durables()
		if _, _, err = w.await(ctx, c, durables, func(state) bool { return true }); err == nil {
			r, err = b.nothingToDo(ctx, c)
		}
		if err != nil {
			c.giveUp()
			return r, err
		}
		_, err = c.leave(ctx)
		return r, err
	})
}

// nothingToDo measures a contestant that waits for messages that do not come.
func (b *bench) nothingToDo(ctx context.Context, c *contestant) (r sample, err error) {
	if err := pause(ctx, min(3*time.Second, b.quiet)); err != nil { // past its start
		return r, err
	}
	begun := time.Now()
	from, err := c.cpu()
	if err == nil {
		err = pause(ctx, b.quiet)
	}
	if err != nil {
		return r, err
	}
	to, err := c.cpu()
	return sample{Seconds: time.Since(begun).Seconds(), CPU: to - from, RSS: c.peakRSS(), Idle: true}, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
