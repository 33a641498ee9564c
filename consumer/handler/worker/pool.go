package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/process"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// shared is what all pools of a route have in common; with per: pool there is one.
type shared struct {
	cfg      Config
	program  *process.Program
	log      *slog.Logger
	starts   process.Starts
	suspects suspects
}

// pool is processes that take any of its messages.
type pool struct {
	*shared
	places *places
	idle   *time.Timer // ends the process for suspects when it has had none for soloIdle

	mu       sync.Mutex
	children map[*child]bool // that are not gone
}

// soloIdle is how long the process for suspects lives without one.
const soloIdle = 10 * time.Second

func newPool(s *shared, processes int) *pool {
	p := &pool{shared: s, places: newPlaces(processes, s.cfg.InFlight), children: make(map[*child]bool)}
	p.idle = time.AfterFunc(soloIdle, p.leaveSolo)
	p.idle.Stop()
	return p
}

// current is the process of a slot, a new one when that is needed.
func (p *pool) current(sl *slot) *child {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.child == nil || !sl.child.usable() {
		p.mu.Lock()
		defer p.mu.Unlock()
		sl.child = newChild(p)
		p.children[sl.child] = true
	}
	return sl.child
}

// gone is called at the end of a child.
func (p *pool) gone(c *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.children, c)
}

// OutOfProcess says that the work is done in processes of its own.
func (p *pool) OutOfProcess() {}

// Check looks whether the program can still be run. It does not run it.
func (p *pool) Check(ctx context.Context) error { return p.program.Check(ctx) }

// maxTries bounds how many processes a message is given to that end before they have read it.
const maxTries = 3

// Handle gives m to a process and returns its verdict. While all are busy it waits.
func (p *pool) Handle(ctx context.Context, m *consumer.Msg) error {
	of := p.suspects.class(m.ID)
	sl, err := p.places.take(ctx, of)
	if err != nil {
		err = fmt.Errorf("%s: no process was free: %w", p.program.Path, err)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && (of != ordinary || p.places.isCrowded()) {
			return comesAgain(err)
		}
		return consumer.NotStarted(err)
	}
	defer p.giveBack(sl)
	for try := 1; ; try++ {
		c := p.current(sl)
		if err := begins(ctx, c); err != nil {
			return consumer.NotStarted(fmt.Errorf("%s: the process is still starting: %w", p.program.Path, err))
		}
		if err := m.StillWanted(ctx); err != nil {
			return err
		}
		a, err := c.do(ctx, m)
		if err == nil {
			p.answered(m, of, a.Verdict)
			return p.verdict(ctx, m, &a)
		}
		if verdict := p.failed(ctx, c, m, err, try); verdict != nil {
			return verdict
		}
	}
}

// answered notes what the answer says of a suspect.
func (p *pool) answered(m *consumer.Msg, of class, verdict string) {
	switch {
	case of == ordinary:
	case verdict == "retry", verdict == "snooze":
		p.suspects.failed(m.ID)
	default:
		p.suspects.acquit(m.ID)
	}
}

// giveBack gives the place of a message to the next one.
func (p *pool) giveBack(sl *slot) {
	p.places.give(sl)
	if sl == p.places.solo {
		p.idle.Reset(soloIdle)
	}
}

// again is the verdict for a message that is not to blame for what happened: it comes again soon, and nothing is held against it.
type again struct {
	err     error
	verdict error
}

func (a *again) Error() string   { return a.err.Error() }
func (a *again) Unwrap() []error { return []error{a.verdict, a.err} }

// againAfter is when such a message comes again.
const againAfter = 100 * time.Millisecond

func comesAgain(err error) error { return &again{err, consumer.Snooze(againAfter)} }

// begins waits until a process has started.
func begins(ctx context.Context, c *child) error {
	select {
	case <-c.begun:
		return nil
	default:
	}
	select {
	case <-c.begun:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// failed is the verdict of an attempt without an answer. With nil the message is to be given to the next process.
func (p *pool) failed(ctx context.Context, c *child, m *consumer.Msg, err error, try int) error {
	switch {
	case errors.Is(err, errHung):
		if p.suspects.class(m.ID) != ordinary {
			p.suspects.failed(m.ID)
		}
		return fmt.Errorf("%s: %w: %w", p.program.Path, c.why(), causeOf(ctx))
	case errors.Is(err, errUnsent):
		return consumer.NotStarted(fmt.Errorf("%s: %w: %w", p.program.Path, err, causeOf(ctx)))
	case errors.Is(err, errSame):
		return consumer.NotStarted(fmt.Errorf("%s: %w", p.program.Path, err))
	}
	<-c.ended
	switch {
	case c.stillborn:
		return p.unbegun(c)
	case errors.Is(err, errTaken), !c.hasRead(m.ID):
		switch {
		case try < maxTries && ctx.Err() == nil:
			return nil
		case c.read > 0: // of messages before it
			return comesAgain(c.death)
		}
		return consumer.NotStarted(c.death)
	case c.beside:
		return comesAgain(fmt.Errorf("beside another message: %w", c.death))
	case c.several:
		p.suspects.add(m.ID)
		return comesAgain(fmt.Errorf("%w (the process was handling several messages; next, each runs alone)", c.death))
	}
	if p.cfg.InFlight > 1 {
		p.suspects.failed(m.ID)
	}
	return consumer.Crashed(c.death)
}

// unbegun is the verdict of an attempt whose process did not begin to work. Why it could not be started may be the machine's doing.
func (p *pool) unbegun(c *child) error {
	err := c.death
	if c.process != nil {
		err = fmt.Errorf("%w: %w", process.ErrBroken, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for other := range p.children {
		if other.reads() { // its answer may be far away
			p.starts.SucceededAt(other.started)
		}
	}
	return p.starts.Failed(err, time.Now())
}

// hasRead tells of a child that has ended whether it had read any of a message's line.
func (c *child) hasRead(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.calls[id]
	return cl != nil && cl.from < c.read
}

func causeOf(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return context.DeadlineExceeded // the clock of the write was ahead
}

// verdict is an answer as an error.
func (p *pool) verdict(ctx context.Context, m *consumer.Msg, a *answer) error {
	text := a.Error
	if text == "" {
		text = "the worker gave no reason"
	}
	err := errors.New(text)
	if cause := context.Cause(ctx); cause != nil && a.Verdict == "retry" {
		err = fmt.Errorf("%w (%s)", cause, text)
	}
	switch a.Verdict {
	case "ack":
		if a.result != nil {
			m.Reply(a.result)
		}
		return nil
	case "snooze":
		return consumer.Snooze(a.delay)
	case "dead":
		return consumer.Dead(err)
	case "drop":
		return consumer.Drop(text)
	}
	if a.delay > 0 {
		return consumer.RetryIn(a.delay, err)
	}
	return err
}

// progress notes how far a message is.
func (p *pool) progress(id string, text *string) {
	p.log.Debug("progress", "id", id, "text", snippet.Head([]byte(*text), maxShown))
}

// leaveSolo ends the process for suspects. A message that it is given meanwhile goes to the next one.
func (p *pool) leaveSolo() {
	if !p.places.soloFree() {
		return
	}
	sl := p.places.solo
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.child != nil {
		sl.child.leave()
		sl.child = nil
	}
}

// Stop ends the processes. The pool can be used again after it.
func (p *pool) Stop(ctx context.Context) error {
	p.mu.Lock()
	var all []*child
	for c := range p.children {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.leave()
	}
	for _, c := range all {
		select {
		case <-c.ended:
			continue
		case <-ctx.Done():
		}
		c.breaks(errors.New("did not exit in time, so relay killed it"), nil)
		<-c.ended
	}
	return nil
}
