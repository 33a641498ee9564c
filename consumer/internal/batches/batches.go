// Package batches gathers messages to batches, and finds the messages that make a batch fail: one that fails is halved until what fails
// is alone. It knows neither routes nor verdicts: [Config] has what says them.
package batches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// grace is how long a batch may take to return once its context has ended: less than a handler, for its messages wait for it.
	grace = 500 * time.Millisecond
	// outage is how many messages in a row must fail alone for the others of their batch not to be tried.
	outage = 3
	// maxHung is how many batches may ignore the end of their context before the route stops.
	maxHung = 8
	// maxAlone bounds the messages that are remembered to run alone.
	maxAlone = 10_000
	// aloneAfter is when a message comes again that is to run alone.
	aloneAfter = 100 * time.Millisecond
)

// Message is what may be in a batch.
type Message interface {
	ID() string // for as long as the message comes again
	Size() int  // bytes of the body
	// Wanted asks whether the message is still wanted when its batch begins, for it may have waited long. An error ends the message
	// with it. Nil: nobody is to be asked.
	Wanted() func(context.Context) error
}

// Meaning is what the error of a batch, or of a message alone, says.
type Meaning uint8

// What an error means. The zero value is Failed.
const (
	Failed    Meaning = iota // something in it is bad, or all of it met an outage
	Done                     // it is done with, as with no error
	Dead                     // it will never succeed
	Elsewhere                // it is about no message: nothing began, or the route is to stop or to wait
)

// Config of a [Batcher].
type Config struct {
	Size  int           // messages of a batch
	Wait  time.Duration // of the first message for the others
	Bytes int           // of the bodies of a batch; a larger message goes alone

	// Call handles a batch. It returns an error for each message, or none at all when all succeeded, or err when it failed as a whole.
	Call func(ctx context.Context, batch []Message) (errs []error, err error)
	// Means reads an error of Call.
	Means func(err error) Meaning
	// Ended is the error for a Call that panicked with p, or that called runtime.Goexit: then p is nil.
	Ended func(p any) error
}

// NotStartedError says that the message was not tried: it left, or its batch was given up before it.
type NotStartedError struct{ Err error }

func (e *NotStartedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotStartedError) Unwrap() error { return e.Err }

// AloneError says that the batch of the message ended without an answer. The message is to come again after the delay, and runs alone then.
type AloneError struct {
	Err   error
	Delay time.Duration
}

func (e *AloneError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *AloneError) Unwrap() error { return e.Err }

// HungError says that too many batches ignore the end of their context for another one to begin.
type HungError struct{ Batches int }

func (e *HungError) Error() string { return fmt.Sprintf("%d batches ignore their timeout", e.Batches) }

// Batcher stands between the slots of a route and the handler of its batches. Each attempt that it is called for joins the batch that is being
// gathered, and waits for its end.
type Batcher struct {
	cfg Config

	mu    sync.Mutex
	open  *gathering      // nil: the next message begins one
	alone map[string]bool // messages, by id, that may have ended a batch
	hung  int             // batches that were given up and have not returned
}

// gathering is a batch, to which messages may come until it begins.
type gathering struct {
	members []*member
	bytes   int
	timer   *time.Timer
	cancel  context.CancelFunc // once it begins
	inside  atomic.Int64       // members that wait for their verdict, and one more until it begins
}

// leaves counts one member less. Without any, the batch is for nobody.
func (g *gathering) leaves() {
	if g.inside.Add(-1) == 0 {
		g.cancel()
	}
}

// member is a message of a batch.
type member struct {
	ctx   context.Context
	m     Message
	batch *gathering
	left  atomic.Bool   // is not inside any more
	done  chan struct{} // closed when err is its verdict
	err   error
}

func (mb *member) end(err error) {
	mb.err = err
	mb.leave()
	close(mb.done)
}

// leave says that nobody waits for the member any more.
func (mb *member) leave() {
	if !mb.left.Swap(true) {
		mb.batch.leaves()
	}
}

// New returns a batcher. Nothing runs until a message comes.
func New(cfg Config) *Batcher { return &Batcher{cfg: cfg, alone: make(map[string]bool)} }

// Handle has m handled with others, or alone, and blocks until it has its error: one that Call returned, or one of this package.
func (b *Batcher) Handle(ctx context.Context, m Message) error {
	mb, err := b.join(ctx, m)
	switch {
	case err != nil:
		return err
	case mb == nil:
		errs, err := b.cfg.Call(ctx, []Message{m})
		if err == nil && len(errs) > 0 {
			err = errs[0]
		}
		if err == nil {
			b.mu.Lock()
			delete(b.alone, m.ID())
			b.mu.Unlock()
		}
		return err
	}
	select {
	case <-mb.done:
	case <-ctx.Done():
		if b.leave(mb) {
			return &NotStartedError{context.Cause(ctx)}
		}
		mb.leave()
		<-mb.done // soon: its batch ends with the context of the last of its messages
	}
	return mb.err
}

// join returns nil for a message that goes alone.
func (b *Batcher) join(ctx context.Context, m Message) (*member, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.hung > maxHung:
		return nil, &HungError{b.hung}
	case b.alone[m.ID()], m.Size() >= b.cfg.Bytes:
		return nil, nil
	}
	if b.open != nil && b.open.bytes+m.Size() > b.cfg.Bytes {
		b.close(b.open)
	}
	if b.open == nil {
		g := new(gathering)
		g.inside.Store(1)
		g.timer = time.AfterFunc(b.cfg.Wait, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.open == g {
				b.close(g)
			}
		})
		b.open = g
	}
	g := b.open
	mb := &member{ctx: ctx, m: m, batch: g, done: make(chan struct{})}
	g.members, g.bytes = append(g.members, mb), g.bytes+m.Size()
	g.inside.Add(1)
	if len(g.members) >= b.cfg.Size {
		b.close(g)
	}
	return mb, nil
}

// leave takes a message out of the batch that is being gathered. It returns false when that has begun.
func (b *Batcher) leave(mb *member) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := mb.batch
	if b.open != g {
		return false
	}
	i := slices.Index(g.members, mb)
	g.members = slices.Delete(g.members, i, i+1)
	g.bytes -= mb.m.Size()
	g.inside.Add(-1)
	return true
}

// close begins a batch. The lock is held.
func (b *Batcher) close(g *gathering) {
	g.timer.Stop()
	b.open = nil
	if len(g.members) > 0 {
		go b.run(g)
	}
}

// run handles a batch, and ends each of its messages. It has until the first attempt times out, or all of them are cancelled.
func (b *Batcher) run(g *gathering) {
	var first time.Time
	for _, mb := range g.members {
		if at, ok := mb.ctx.Deadline(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	ctx := context.WithoutCancel(g.members[0].ctx)
	if first.IsZero() {
		ctx, g.cancel = context.WithCancel(ctx)
	} else {
		ctx, g.cancel = context.WithDeadline(ctx, first)
	}
	defer g.cancel()
	g.leaves()
	t := &tries{Batcher: b, ctx: ctx}
	if list := wanted(g.members); len(list) > 0 {
		t.halve(list)
	}
}

// wanted ends the messages whose callers do not want them any more, and returns the others. They may have waited long for their batch.
func wanted(list []*member) []*member {
	var asked sync.WaitGroup
	errs := make([]error, len(list))
	for i, mb := range list {
		if ask := mb.m.Wanted(); ask != nil {
			asked.Go(func() { errs[i] = ask(mb.ctx) })
		}
	}
	asked.Wait()
	left := make([]*member, 0, len(list))
	for i, mb := range list {
		if errs[i] != nil {
			mb.end(errs[i])
		} else {
			left = append(left, mb)
		}
	}
	return left
}

// tries is one batch on its way to the messages that fail.
type tries struct {
	*Batcher
	ctx context.Context
	row int   // messages that failed alone since something succeeded
	err error // of the last one
}

// halve tries a batch, and its halves when it fails as a whole.
func (t *tries) halve(list []*member) {
	if t.row >= outage {
		t.endAll(list, &NotStartedError{fmt.Errorf("not started, because %d messages of its batch failed one after the other: %w", t.row, t.err)})
		return
	}
	if t.ctx.Err() != nil {
		t.apart(list, context.Cause(t.ctx))
		return
	}
	errs, err, ended := t.call(list)
	means := t.cfg.Means(err)
	switch {
	case ended:
		t.apart(list, err)
	case err == nil:
		t.row = 0
		for i, mb := range list {
			if len(errs) > 0 {
				mb.err = errs[i]
			}
			mb.end(mb.err)
		}
	case means == Done:
		t.row = 0
		t.endAll(list, err)
	case t.ctx.Err() != nil:
		t.apart(list, err)
	case means == Elsewhere:
		t.endAll(list, err)
	case len(list) == 1 && means == Dead: // an answer: there is no outage
		t.row = 0
		list[0].end(err)
	case len(list) == 1:
		t.row, t.err = t.row+1, err
		list[0].end(err)
	default:
		t.halve(list[:len(list)/2])
		t.halve(list[len(list)/2:])
	}
}

func (t *tries) endAll(list []*member, err error) {
	for _, mb := range list {
		mb.end(err)
	}
}

// apart has each message come again at once, to run alone.
func (t *tries) apart(list []*member, err error) {
	t.mu.Lock()
	if len(t.alone)+len(list) > maxAlone {
		clear(t.alone)
	}
	for _, mb := range list {
		t.alone[mb.m.ID()] = true
	}
	t.mu.Unlock()
	again := &AloneError{fmt.Errorf("the batch of %d ended without an answer; the message runs alone next: %w", len(list), err), aloneAfter}
	t.endAll(list, again)
}

var errHung = errors.New("the batch ignores its timeout")

// call hands a batch over. Ended says that it gave no answer: it panicked, called runtime.Goexit or did not return.
func (t *tries) call(list []*member) (errs []error, err error, ended bool) {
	type answer struct {
		errs  []error
		err   error
		ended bool
	}
	batch := make([]Message, len(list))
	for i, mb := range list {
		batch[i] = mb.m
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{ended: true}
		returned := false
		defer func() { answered <- a }()
		defer func() {
			if !returned {
				a.err = t.cfg.Ended(recover())
			}
		}()
		errs, err := t.cfg.Call(t.ctx, batch)
		a, returned = answer{errs: errs, err: err}, true
	}()
	select {
	case a := <-answered:
		return a.errs, a.err, a.ended
	case <-t.ctx.Done():
	}
	over := time.NewTimer(grace)
	defer over.Stop()
	select {
	case a := <-answered:
		return a.errs, a.err, a.ended
	case <-over.C:
	}
	b := t.Batcher
	b.count(1)
	go func() {
		<-answered
		b.count(-1)
	}()
	return nil, errHung, true
}

// Hung is how many batches were given up and have not returned.
func (b *Batcher) Hung() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hung
}

func (b *Batcher) count(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hung += n
}
