package usercode

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/internal/retry"
)

type panics struct{ with any }

func (p panics) Error() string { panic(p.with) }

type pointer struct{}

func (*pointer) Error() string { return "never called" }

type runtimeError struct{}

func (runtimeError) Error() string { return "index out of range" }
func (runtimeError) RuntimeError() {}

// The text of any error, and nothing else of it, goes on.
func TestSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("line\r\nbreak\x00"), "break"},
		{panics{"oh"}, "whose Error method failed: panic: oh"},
		{panics{runtimeError{}}, "panic: index out of range"},
		{panics{7}, "panic of type int"},
		{(*pointer)(nil), "handler returned a nil *usercode.pointer as error"},
		{errors.New(strings.Repeat("x", 2*retry.MaxErrorLen)), "xxx"},
	} {
		got := Said(c.err)
		if _, plain := got.(Error); !plain || !strings.Contains(got.Error(), c.want) || len(got.Error()) > retry.MaxErrorLen || strings.ContainsAny(got.Error(), "\x00\r\n") {
			t.Errorf("%T: %.100q, want %q", c.err, got, c.want)
		}
		if Said(got) != got {
			t.Errorf("%q is asked again", got)
		}
	}
	if err := Said(nil); err != nil {
		t.Error(err)
	}
}

func TestCall(t *testing.T) {
	t.Parallel()
	if err := Call(func() error { return nil }); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]func() error{
		"down":       func() error { return errors.New("down") },
		"panic: oh":  func() error { panic("oh") },
		"panic of t": func() error { panic(errors.New("oh")) },
	} {
		err := Call(f)
		if _, plain := err.(Error); !plain || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%T %v, want %s", err, err, want)
		}
	}
}

type handler struct {
	starts, stops atomic.Int64
	start, stop   func(context.Context) error
}

func (h *handler) Start(ctx context.Context) error { h.starts.Add(1); return h.start(ctx) }
func (h *handler) Stop(ctx context.Context) error  { h.stops.Add(1); return h.stop(ctx) }

func fine(context.Context) error { return nil }

// A handler is started once, by whoever comes first, and again when that failed; it is stopped if it ever began, and nobody else has it.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none *Life
		none.Keep()
		if err := errors.Join(none.Begin(t.Context()), none.End(t.Context(), time.Second)); err != nil || NewLife("no handler") != nil {
			t.Errorf("of a handler that is neither started nor stopped: %v", err)
		}
		h := &handler{start: func(context.Context) error { panic("no database") }, stop: fine}
		l := NewLife(h)
		if err := l.Begin(t.Context()); err == nil || err.Error() != "the handler did not start: panic: no database" {
			t.Error(err)
		}
		if err := l.End(t.Context(), time.Second); err != nil || h.stops.Load() != 0 {
			t.Errorf("stopped although it never began: %v", err)
		}
		h.start = func(context.Context) error { time.Sleep(time.Second); return nil }
		begun := make(chan error, 3)
		for range 3 {
			go func() { begun <- l.Begin(t.Context()) }()
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		synctest.Wait()
		if err := l.Begin(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while it starts: %v", err)
		}
		for range 3 {
			if err := <-begun; err != nil {
				t.Error(err)
			}
		}
		if n := h.starts.Load(); n != 2 {
			t.Errorf("started %d times", n)
		}
		l.Keep()
		if err := l.End(t.Context(), time.Second); err != nil || h.stops.Load() != 0 {
			t.Errorf("stopped although others have it: %v", err)
		}
		l.LetGo()
		if err := l.End(t.Context(), time.Second); err != nil || h.stops.Load() != 1 {
			t.Errorf("stopped %d times, %v", h.stops.Load(), err)
		}
	})
}

// The end of a handler has a bound, which the end of the drain makes shorter, and never shorter than a moment.
func TestLife_endThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := func(stop func(context.Context) error) *Life {
			l := NewLife(&handler{start: fine, stop: stop})
			if err := l.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			return l
		}
		over := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		for drain, want := range map[time.Duration]time.Duration{0: minStop, 5 * time.Second: 5 * time.Second, time.Hour: time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), drain)
			began := time.Now()
			if err := begun(over).End(ctx, time.Minute); err == nil || time.Since(began) != want {
				t.Errorf("drain %v: after %v: %v", drain, time.Since(began), err)
			}
			cancel()
		}
		began, release := time.Now(), make(chan struct{})
		err := begun(func(context.Context) error { <-release; return nil }).End(t.Context(), time.Minute)
		if err == nil || err.Error() != "the handler did not stop in time" || time.Since(began) != time.Minute+minStop {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		close(release)
		for want, stop := range map[string]func(context.Context) error{
			"panic: oh": func(context.Context) error { panic("oh") }, errGoexit.Error(): func(context.Context) error { runtime.Goexit(); return nil },
		} {
			if err := begun(stop).End(t.Context(), time.Minute); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}
