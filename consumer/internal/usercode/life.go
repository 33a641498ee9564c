package usercode

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Life starts and stops a handler that all keys of a route share. A handler of a factory is started and stopped with
// the child that it is. The methods of a nil Life do nothing.
type Life struct {
	handler any
	turn    chan struct{} // held by whoever starts it
	begun   atomic.Bool
	kept    atomic.Bool // others have the handler, too: End leaves it
}

type Starter interface{ Start(context.Context) error }

type Stopper interface{ Stop(context.Context) error }

// NewLife returns nil for a handler that need not be started nor stopped.
func NewLife(h any) *Life {
	_, starts := h.(Starter)
	_, stops := h.(Stopper)
	if !starts && !stops {
		return nil
	}
	return &Life{handler: h, turn: make(chan struct{}, 1)}
}

// Begin starts the handler before its first message, as a part of that attempt: under its recover and its timeout. What fails
// is tried again with the next attempt, so that the route's own backoff paces it, and a handler whose database is down does not
// keep relay from starting.
func (l *Life) Begin(ctx context.Context) error {
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
		if err := Call(func() error { return s.Start(ctx) }); err != nil {
			return fmt.Errorf("the handler did not start: %w", err)
		}
	}
	l.begun.Store(true)
	return nil
}

// Keep says that others have the handler, too: End leaves it.
func (l *Life) Keep() {
	if l != nil {
		l.kept.Store(true)
	}
}

// LetGo ends what Keep began.
func (l *Life) LetGo() {
	if l != nil {
		l.kept.Store(false)
	}
}

var errGoexit = errors.New("handler called runtime.Goexit")

// minStop is what a handler gets for its end when nothing is left of the drain.
const minStop = time.Second

// End stops the handler, if it ever began. It returns when that is done, or its time is over.
func (l *Life) End(ctx context.Context, timeout time.Duration) error {
	if l == nil || l.kept.Load() || !l.begun.Load() {
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
		err := errGoexit
		defer func() { stopped <- err }()
		err = Call(func() error { return s.Stop(ctx) })
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
