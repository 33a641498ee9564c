package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// sample is one turn of one contestant.
type sample struct {
	Job, Contestant string
	Round           int
	Messages        int
	Seconds         float64
	CPU             time.Duration
	ServerCPU       time.Duration
	Mallocs         uint64
	Handled         int // over the whole turn, to which Mallocs belong
	RSS             int64
	Capped          bool // the time was over before the messages
	Latency         *quantiles
	Offered         float64 // latency: messages a second that were published
	Late            time.Duration
	Idle            bool
	Figures         map[string]float64 // of the job's own, by their column
}

func (s *sample) rate() float64 { return float64(s.Messages) / s.Seconds }
func (s *sample) cpuMicros() float64 {
	return float64(s.CPU.Nanoseconds()) / 1000 / float64(s.Messages)
}
func (s *sample) serverMicros() float64 {
	return float64(s.ServerCPU.Nanoseconds()) / 1000 / float64(s.Messages)
}
func (s *sample) mallocs() float64 { return float64(s.Mallocs) / float64(max(s.Handled, 1)) }
func (s *sample) cores() float64   { return 100 * s.CPU.Seconds() / s.Seconds }

// contestant is one on its turn, in a process of its own.
type contestant struct {
	*process
	binary *program // nil for those inside a child
	spec   *spec
}

func (b *bench) enter(ctx context.Context, s *spec) (*contestant, error) {
	if s.Contestant == "binary" {
		p, err := startBinary(ctx, b.relay, s)
		if err != nil {
			return nil, err
		}
		return &contestant{p.process, p, s}, nil
	}
	p, err := play(ctx, "contestant", s)
	if err != nil {
		return nil, err
	}
	return &contestant{process: p, spec: s}, nil
}

// leave ends the contestant's turn and returns what it says of it.
func (c *contestant) leave(ctx context.Context) (r result, err error) {
	if c.binary != nil {
		r, err = c.binary.result(ctx)
		c.binary.end()
	} else {
		err = c.ask(&r)
		c.stop(nil)
	}
	return r, err
}

// give up a contestant that failed.
func (c *contestant) giveUp() {
	_ = c.cmd.Process.Kill()
	if c.binary != nil {
		c.binary.end()
		return
	}
	c.stop(nil)
}

// patience is how long a contestant may take until its first message.
const patience = 20 * time.Second

// drain measures a contestant on a stream in which n messages are pending for it, beside some that are outstanding
// anyway, from the first message that the server has delivered to the last that is settled there. Everything is measured
// from outside and in the same way for all: by the server's state of the durables, and the kernel's of the process.
func (b *bench) drain(ctx context.Context, w *world, s *spec, n, outstanding int, atMost time.Duration) (r sample, err error) {
	return b.drainSince(ctx, w, s, n, outstanding, atMost, begun(n), nil)
}

// begun tells whether the first of n messages has been delivered.
func begun(n int) func(state) bool {
	return func(s state) bool { return s.pending < n && s.delivered > 0 && s.pending+s.delivered >= n }
}

// drainSince is drain from the first look at which it has begun. From then on meanwhile runs beside it, when there is one: it ends when over is closed,
// and returns figures of its own.
func (b *bench) drainSince(ctx context.Context, w *world, s *spec, n, outstanding int, atMost time.Duration, begun func(state) bool,
	meanwhile func(c *contestant, over <-chan struct{}) (map[string]float64, error)) (r sample, err error) {
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
	before, from, err := w.await(ctx, c, durables, begun)
	if err != nil {
		return r, err
	}
	finish := func() (figures map[string]float64, err error) { return nil, nil }
	if meanwhile != nil {
		over := make(chan struct{})
		ended := make(chan struct{})
		var figures map[string]float64
		var failed error
		go func() {
			defer close(ended)
			figures, failed = meanwhile(c, over)
		}()
		finish = sync.OnceValues(func() (map[string]float64, error) {
			close(over)
			<-ended
			return figures, failed
		})
		defer finish()
	}
	to := from
	if from.left <= outstanding && !before.at.IsZero() {
		// A tiny job, over within one look: it is measured from the look before.
		from = before
		from.left = n + outstanding
	}
	for to.left > outstanding && to.at.Sub(from.at) < atMost {
		// Looking costs the server something: more often only towards the end.
		done := from.left - to.left
		pause := 20 * time.Millisecond
		if done > 0 {
			rest := time.Duration(float64(to.at.Sub(from.at)) / float64(done) * float64(to.left-outstanding))
			pause = max(time.Millisecond, min(pause, rest/4))
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-c.ended:
			return r, c.failure()
		case <-time.After(pause):
		}
		if to, err = w.look(ctx, c, durables); err != nil {
			return r, err
		}
	}
	r = sample{
		Contestant: s.Contestant, Messages: from.left - to.left, Seconds: to.at.Sub(from.at).Seconds(), CPU: to.cpu - from.cpu, ServerCPU: to.server - from.server,
		Capped: to.left > outstanding, RSS: c.peakRSS(),
	}
	if r.Messages <= 0 || r.Seconds <= 0 {
		return r, fmt.Errorf("nothing to measure: %d of %d messages in %v s", r.Messages, n, r.Seconds)
	}
	if r.Figures, err = finish(); err != nil {
		return r, err
	}
	said, err := c.leave(ctx)
	if err != nil {
		return r, err
	}
	r.Mallocs, r.Handled = said.Mallocs, n-max(0, to.left-outstanding)
	if s.Handler.Until > 0 && !r.Capped && said.Handled < int64(s.Handler.Until) {
		return r, fmt.Errorf("%d of %d messages were handled, but all are settled", said.Handled, s.Handler.Until)
	}
	return r, nil
}

// mark is a moment of a turn.
type mark struct {
	at   time.Time
	left int // pending or outstanding
	cpu  time.Duration
	// of the server
	server time.Duration
}

func (w *world) look(ctx context.Context, c *contestant, durables []string) (m mark, err error) {
	s, err := w.state(ctx, durables)
	if err != nil {
		return m, err
	}
	m.at, m.left = time.Now(), s.left()
	m.server, _ = w.server.cpu()
	m.cpu, err = c.cpu()
	return m, err
}

// await looks until the durables are there and as they should be. It returns that look and the one before.
func (w *world) await(ctx context.Context, c *contestant, durables []string, fine func(state) bool) (before, m mark, err error) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		before = m
		s, err := w.state(ctx, durables)
		missing := errors.Is(err, jetstream.ErrConsumerNotFound)
		if err != nil && !missing {
			return before, m, err
		}
		m.at, m.left = time.Now(), s.left()
		// Before it has begun, it may be gone as well; that is told below.
		m.cpu, _ = c.cpu()
		m.server, _ = w.server.cpu()
		if !missing && fine(s) {
			return before, m, nil
		}
		select {
		case <-ctx.Done():
			return before, m, ctx.Err()
		case <-c.ended:
			return before, m, c.failure()
		case <-time.After(time.Millisecond):
		}
	}
	return before, m, fmt.Errorf("%s got nothing to do for %v: %s", c.spec.Contestant, patience, c.stderr.String())
}
