package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// sharedLife starts and stops the handler that all keys of a route share. A handler of a factory is started and stopped with
// the child that it is.
type sharedLife struct {
	handler Handler
	turn    chan struct{} // held by whoever starts it
	begun   atomic.Bool
	kept    bool // others have the handler, too: end leaves it
}

// newSharedLife returns nil for a handler that need not be started nor stopped.
func newSharedLife(h Handler) *sharedLife {
	_, starts := h.(Starter)
	_, stops := h.(Stopper)
	if !starts && !stops {
		return nil
	}
	return &sharedLife{handler: h, turn: make(chan struct{}, 1)}
}

// begin starts the handler before its first message, as a part of that attempt: under its recover and its timeout. What fails
// is tried again with the next attempt, so that the route's own backoff paces it, and a handler whose database is down does not
// keep relay from starting.
func (l *sharedLife) begin(ctx context.Context) error {
	if l == nil || l.begun.Load() {
		return nil
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("the handler is still starting: %w", ctx.Err())
	}
	if l.begun.Load() {
		return nil
	}
	if s, ok := l.handler.(Starter); ok {
		if err := recovered(func() error { return s.Start(ctx) }); err != nil {
			return fmt.Errorf("the handler did not start: %w", err)
		}
	}
	l.begun.Store(true)
	return nil
}

// minStop is what a handler gets for its end when nothing is left of the drain.
const minStop = time.Second

// end stops the handler, if it ever began. It returns when that is done, or its time is over.
func (l *sharedLife) end(ctx context.Context, timeout time.Duration) error {
	if l == nil || l.kept || !l.begun.Load() {
		return nil
	}
	s, ok := l.handler.(Stopper)
	if !ok {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), minStop))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	stopped := make(chan error, 1)
	go func() {
		err := error(&supervisor.PanicError{Goexit: true})
		defer func() { stopped <- err }()
		err = recovered(func() error { return s.Stop(ctx) })
	}()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-stopped:
		return err
	case <-time.After(minStop): // it has been told, and may need a moment
		return errors.New("the handler did not stop in time")
	}
}

// checkHandler asks a route's handler, and its fallback, whether they can work.
func checkHandler(ctx context.Context, cfg Route) error {
	check := cfg.Check
	if c, ok := cfg.Handler.(Checker); ok {
		check = c.Check
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	if check != nil {
		if err := recovered(func() error { return check(ctx) }); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
	}
	if f := cfg.Fallback; f != nil {
		if c, ok := f.Handler.(Checker); ok {
			if err := recovered(func() error { return c.Check(ctx) }); err != nil {
				return fmt.Errorf("fallback.handler: %w", err)
			}
		}
	}
	return nil
}

// recovered calls foreign code. What it returns, or panics with, comes back as plain text.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = saidError(panicText(p))
		}
	}()
	return said(f())
}
