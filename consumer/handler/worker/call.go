package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer"
)

// call is a message in a child.
type call struct {
	child     *child
	interrupt func()        // tells the child that the call's time is over; made once, since calls are used again
	wake      chan struct{} // has room for one

	// Under child.mu:
	id     string
	from   int64 // where its line begins in what was written to the child
	over   bool  // its time is
	done   bool  // answer is there
	answer answer
}

var calls = sync.Pool{New: func() any {
	cl := &call{wake: make(chan struct{}, 1)}
	cl.interrupt = func() { cl.child.interrupt(cl) }
	return cl
}}

// Why do returns no answer.
var (
	errTaken  = errors.New("the process accepts no more messages") // it has not got this one
	errEnded  = errors.New("the process has ended")                // how is said by the child
	errHung   = errors.New("the process did not answer in time")   // and is killed for it
	errUnsent = errors.New("the process did not read the message") // it has not got this one
	errSame   = errors.New("the process is handling this message already")
)

// do gives the child a message and waits for the answer. It returns at the latest within the grace and half a second after the end
// of ctx.
func (c *child) do(ctx context.Context, m *consumer.Msg) (answer, error) {
	cl := calls.Get().(*call)
	cl.child, cl.id = c, m.ID
	stop := afterFunc(ctx, cl.interrupt)
	err := c.send(ctx, cl, m)
	if err == nil {
		err = c.await(cl)
	}
	a := cl.answer
	// Otherwise somebody may know it still.
	if stop() && err == nil {
		select {
		case <-cl.wake:
		default:
		}
		cl.child, cl.over, cl.done, cl.answer = nil, false, false, answer{}
		calls.Put(cl)
	}
	return a, err
}

// afterFunc is context.AfterFunc, at less cost for the contexts of relay's own attempts.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if own, ok := ctx.(interface{ AfterFunc(func()) func() bool }); ok {
		return own.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// interrupt ends what cl is doing: reading, writing, or waiting for who reads.
func (c *child) interrupt(cl *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl.over = true
	if c.reader == cl {
		c.readUntil = true
		_ = c.process.Out.SetReadDeadline(past)
	}
	if c.writer == cl {
		c.writeUntil = true
		_ = c.process.In.SetWriteDeadline(past)
	}
	cl.rouse()
}

func (cl *call) rouse() {
	select {
	case cl.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// send writes the line of a message.
func (c *child) send(ctx context.Context, cl *call, m *consumer.Msg) error {
	select {
	case c.turn <- struct{}{}:
	default:
		select {
		case c.turn <- struct{}{}:
		case <-c.ended:
			return errTaken
		case <-ctx.Done():
			return errUnsent
		}
	}
	defer func() { <-c.turn }()
	if err := c.take(cl); err != nil {
		return err
	}
	c.line = appendRequest(c.line[:0], m)
	n, err := c.process.In.Write(c.line)
	c.written.Add(int64(n))
	if cap(c.line) > 1<<20 {
		c.line = nil
	}
	c.mu.Lock()
	c.writer = nil
	if err != nil && n == 0 && cl.over && c.broken == nil {
		delete(c.calls, cl.id)
		c.mu.Unlock()
		return errUnsent
	}
	c.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded): // what has the beginning of a line cannot be used again
		c.breaks(errors.New("did not read its stdin, so relay killed it"), cl)
	default:
		c.breaks(errors.New("closed its stdin"), nil)
	}
	return nil // what there is to say, await says
}

// take makes cl one of the messages of the child, and the writer.
func (c *child) take(cl *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) == 0 && c.reader == nil {
		// It has answered all it had. What came after that must not become the fault of the next message.
		if rest := bytes.TrimSpace(c.out.rest()); len(rest) > 0 {
			c.breakLocked(fmt.Errorf("wrote a line for no message: %s", shown(rest)), nil)
		}
	}
	switch {
	case !c.takes():
		return errTaken
	case cl.over:
		return errUnsent
	case c.calls[cl.id] != nil:
		return errSame
	}
	if len(c.calls) == 0 {
		c.turns.Add(1)
	}
	c.calls[cl.id], cl.from, c.writer = cl, c.written.Load(), cl
	if c.writeUntil {
		c.writeUntil = false
		_ = c.process.In.SetWriteDeadline(time.Time{})
	}
	return nil
}

// await waits for the answer. When cl's time is over, the process is told, and gets the grace.
func (c *child) await(cl *call) error {
	var until time.Time // the end of the grace; zero: the time is not over
	for {
		c.mu.Lock()
		if cl.over && until.IsZero() && !cl.done && c.broken == nil {
			c.mu.Unlock()
			until = time.Now().Add(c.pool.cfg.Grace)
			c.cancel(cl)
			continue
		}
		switch {
		case cl.done:
			c.mu.Unlock()
			return nil
		case c.broken != nil && c.guilty == cl:
			c.mu.Unlock()
			return errHung
		case c.broken != nil:
			c.mu.Unlock()
			<-c.ended
			c.mu.Lock()
			done := cl.done // it was read while the process was being ended
			c.mu.Unlock()
			if done {
				return nil
			}
			return errEnded
		case !until.IsZero() && !time.Now().Before(until):
			c.mu.Unlock()
			c.breaks(fmt.Errorf("did not answer within %v after its message was cancelled, so relay killed it", c.pool.cfg.Grace), cl)
		case c.reader == nil:
			c.reader = cl
			if c.readUntil || !until.IsZero() {
				c.readUntil = !until.IsZero()
				_ = c.process.Out.SetReadDeadline(until) // zero: none
			}
			c.mu.Unlock()
			c.lead(cl)
		default:
			c.mu.Unlock()
			c.follow(cl, until)
		}
	}
}

// follow waits until something has happened to cl.
func (c *child) follow(cl *call, until time.Time) {
	if until.IsZero() {
		select {
		case <-cl.wake:
		case <-c.ended:
		}
		return
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-cl.wake:
	case <-c.ended:
	case <-timer.C:
	}
}

// lead reads lines until cl has its answer, or its time is over, or there is nothing to read any more.
func (c *child) lead(cl *call) {
	err := c.readFor(cl)
	c.mu.Lock()
	c.reader = nil
	c.passOn(cl)
	c.mu.Unlock()
	if err != nil {
		c.breaks(err, nil)
	}
}

// passOn rouses who reads next. It must be one that waits: who still writes may have to wait for the process to write, and looks for
// itself when it has written, and so does cl.
func (c *child) passOn(cl *call) {
	for _, other := range c.calls {
		if other != cl && other != c.writer {
			other.rouse()
			return
		}
	}
}

func (c *child) readFor(cl *call) error {
	for {
		line, err := c.out.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, errTooLong):
			return fmt.Errorf("wrote a line of more than %d bytes: %s", c.out.max, shown(line))
		case err != nil:
			return errClosedOut
		}
		whose, err := c.accept(line)
		if err != nil {
			return fmt.Errorf("%w: %s", err, shown(line))
		}
		if whose == cl {
			return nil
		}
	}
}

// accept takes a line. whose is the call that it ends.
func (c *child) accept(line []byte) (whose *call, err error) {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil, nil
	}
	var a answer
	if err := a.parse(line); err != nil {
		return nil, fmt.Errorf("wrote a line that is not an answer (%w)", err)
	}
	c.said()
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.calls[a.ID]
	switch {
	case cl == nil && a.Ready:
		return nil, nil // whether anybody waited for it or not
	case cl == nil:
		return nil, fmt.Errorf("answered for the id %q, which it was not given, or has answered before", a.ID)
	case a.Verdict == "":
		c.pool.progress(cl.id, a.Progress)
		return nil, nil
	}
	delete(c.calls, cl.id)
	cl.answer, cl.done = a, true
	if c.reader != cl {
		cl.rouse()
	}
	if c.exited && len(c.calls) == 0 {
		c.breakLocked(errExited, nil)
	}
	return cl, nil
}

// cancel tells the process that nobody waits for a message any more. A process that does not read is not told.
func (c *child) cancel(cl *call) {
	select {
	case c.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-c.turn }()
	c.mu.Lock()
	if !c.takes() {
		c.mu.Unlock()
		return
	}
	c.writeUntil = true
	_ = c.process.In.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	c.mu.Unlock()
	n, err := c.process.In.Write(appendCancel(nil, cl.id))
	c.written.Add(int64(n))
	if err != nil && n > 0 {
		c.breaks(errors.New("did not read its stdin, so relay killed it"), cl)
	}
}
