package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// batcher stands between the slots of a route and its BatchHandler. Each attempt that it is called for joins the batch that is being
// gathered, and waits for its end.
type batcher struct {
	handler BatchHandler
	cfg     Batch

	mu    sync.Mutex
	open  *gathering      // nil: the next message begins one
	alone map[string]bool // messages, by id, that may have ended a batch
	stuck int             // batches that were given up and have not returned
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
	m     *Msg
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

const (
	// batchGrace is how long a batch may take to return once its context has ended: less than a handler, for its messages wait for it.
	batchGrace = 500 * time.Millisecond
	// batchOutage is how many messages in a row must fail alone for the others of their batch not to be tried.
	batchOutage = 3
	// maxStuckBatches is how many batches may ignore the end of their context before the route stops.
	maxStuckBatches = 8
	// maxAlone bounds the messages that are remembered to run alone.
	maxAlone = 10_000
	// aloneAfter is when a message comes again that is to run alone.
	aloneAfter = 100 * time.Millisecond
)

// newBatcher is for a route with so many slots: more messages than that never come together.
func newBatcher(h BatchHandler, cfg Batch, concurrency int) *batcher {
	cfg.Size = min(cfg.Size, concurrency)
	return &batcher{handler: h, cfg: cfg, alone: make(map[string]bool)}
}

// Handle has m handled with others, or alone.
func (b *batcher) Handle(ctx context.Context, m *Msg) error {
	mb, err := b.join(ctx, m)
	switch {
	case err != nil:
		return err
	case mb == nil:
		if err = handleOne(ctx, b.handler, m); err == nil {
			b.mu.Lock()
			delete(b.alone, m.ID)
			b.mu.Unlock()
		}
		return err
	}
	select {
	case <-mb.done:
	case <-ctx.Done():
		if b.leave(mb) {
			return NotStarted(context.Cause(ctx))
		}
		mb.leave()
		<-mb.done // soon: its batch ends with the context of the last of its messages
	}
	return mb.err
}

// join returns nil for a message that goes alone.
func (b *batcher) join(ctx context.Context, m *Msg) (*member, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stuck > maxStuckBatches:
		return nil, FailRoute(fmt.Errorf("%d batches ignore their timeout", b.stuck))
	case b.alone[m.ID], len(m.Data) >= int(b.cfg.Bytes):
		return nil, nil
	}
	if b.open != nil && b.open.bytes+len(m.Data) > int(b.cfg.Bytes) {
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
	g.members, g.bytes = append(g.members, mb), g.bytes+len(m.Data)
	g.inside.Add(1)
	if len(g.members) >= b.cfg.Size {
		b.close(g)
	}
	return mb, nil
}

// leave takes a message out of the batch that is being gathered. It returns false when that has begun.
func (b *batcher) leave(mb *member) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := mb.batch
	if b.open != g {
		return false
	}
	i := slices.Index(g.members, mb)
	g.members = slices.Delete(g.members, i, i+1)
	g.bytes -= len(mb.m.Data)
	g.inside.Add(-1)
	return true
}

// close begins a batch. The lock is held.
func (b *batcher) close(g *gathering) {
	g.timer.Stop()
	b.open = nil
	if len(g.members) > 0 {
		go b.run(g)
	}
}

// run handles a batch, and ends each of its messages. It has until the first attempt times out, or all of them are cancelled.
func (b *batcher) run(g *gathering) {
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
	t := &tries{batcher: b, ctx: ctx}
	if list := wanted(g.members); len(list) > 0 {
		t.halve(list)
	}
}

// wanted ends the messages whose callers do not want them any more, and returns the others. They may have waited long for their batch.
func wanted(list []*member) []*member {
	var asked sync.WaitGroup
	errs := make([]error, len(list))
	for i, mb := range list {
		if mb.m.gate != nil {
			asked.Go(func() { errs[i] = mb.m.StillWanted(mb.ctx) })
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
	*batcher
	ctx context.Context
	row int   // messages that failed alone since something succeeded
	err error // of the last one
}

// halve tries a batch, and its halves when it fails as a whole.
func (t *tries) halve(list []*member) {
	if t.row >= batchOutage {
		t.endAll(list, NotStarted(fmt.Errorf("not started, because %d messages of its batch failed one after the other: %w", t.row, t.err)))
		return
	}
	if t.ctx.Err() != nil {
		t.apart(list, context.Cause(t.ctx))
		return
	}
	errs, err, ended := t.call(list)
	v, _ := verdictOf(err)
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
	case v.Kind == supervisor.Ack, v.Kind == supervisor.Drop: // it is done with all of them
		t.row = 0
		t.endAll(list, err)
	case t.ctx.Err() != nil:
		t.apart(list, err)
	case v.FailRoute, v.NotStarted, v.Pause, v.Kind == supervisor.Snooze: // it is about no message
		t.endAll(list, err)
	case len(list) == 1 && v.Kind == supervisor.Dead: // an answer: there is no outage
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
		t.alone[mb.m.ID] = true
	}
	t.mu.Unlock()
	again := &verdictError{Verdict{
		Kind: VerdictSnooze, Delay: aloneAfter, Err: fmt.Errorf("its batch of %d ended without an answer, and it runs alone next: %w", len(list), err),
	}}
	t.endAll(list, again)
}

var errBatchHung = errors.New("the batch ignores its timeout")

// call hands a batch over. Ended says that it gave no answer: it panicked, called runtime.Goexit or did not return.
func (t *tries) call(list []*member) (errs []error, err error, ended bool) {
	type answer struct {
		errs  []error
		err   error
		ended bool
	}
	batch := make([]*Msg, len(list))
	for i, mb := range list {
		batch[i] = mb.m
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{err: &supervisor.PanicError{Goexit: true}, ended: true}
		defer func() { answered <- a }()
		defer func() {
			if p := recover(); p != nil {
				a.err = saidError("panic: " + panicText(p))
			}
		}()
		errs, err := handleAll(t.ctx, t.handler, batch)
		a = answer{errs: errs, err: err}
	}()
	select {
	case a := <-answered:
		return a.errs, a.err, a.ended
	case <-t.ctx.Done():
	}
	grace := time.NewTimer(batchGrace)
	defer grace.Stop()
	select {
	case a := <-answered:
		return a.errs, a.err, a.ended
	case <-grace.C:
	}
	b := t.batcher
	b.count(1)
	go func() {
		<-answered
		b.count(-1)
	}()
	return nil, errBatchHung, true
}

// hung is how many batches were given up and have not returned.
func (b *batcher) hung() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stuck
}

func (b *batcher) count(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck += n
}
