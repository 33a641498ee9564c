package consumer

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// lived is a handler that is shared, and says what was called.
type lived struct {
	started, handled, stopped atomic.Int64
	start, stop               func(ctx context.Context, n int64) error
}

func (l *lived) Start(ctx context.Context) error { return l.start(ctx, l.started.Add(1)) }
func (l *lived) Stop(ctx context.Context) error  { return l.stop(ctx, l.stopped.Add(1)) }
func (l *lived) Handle(context.Context, *Msg) error {
	if l.stopped.Load() > 0 {
		return errors.New("handled after Stop")
	}
	l.handled.Add(1)
	return nil
}

func fine(context.Context, int64) error { return nil }

// Start and Stop of a handler that all keys share were never called.
func TestRelay_regressionSharedHandlersAreStartedAndStopped(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	for name, h := range map[string]*lived{
		"as it should be": {start: fine, stop: fine},
		"Start fails twice, then panics": {stop: fine, start: func(_ context.Context, n int64) error {
			switch n {
			case 1, 2:
				return errors.New("no database")
			case 3:
				panic("not yet")
			}
			return nil
		}},
		"Stop panics":             {start: fine, stop: func(context.Context, int64) error { panic(badError{}) }},
		"Stop ignores its time":   {start: fine, stop: func(context.Context, int64) error { <-released; return nil }},
		"Stop heeds its own time": {start: fine, stop: func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.publish("orders.1", 5)
			quick := supervisor.Backoff{Policy: supervisor.Constant, Min: time.Millisecond, Max: time.Millisecond}
			_, stop := w.start(Config{Logger: quiet}, Route{
				Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Timeout: time.Second,
				Retry: Retry{MaxAttempts: 1, Backoff: quick}, Supervisor: supervisor.Config{Restart: quick}, Handler: h,
			})
			w.eventually("all are handled", func() bool { return h.handled.Load() == 5 })
			if len(w.deadLetters()) > 0 {
				t.Error("a Start that failed spent attempts")
			}
			began := time.Now()
			if err := stop(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 10*time.Second || h.stopped.Load() != 1 {
				t.Errorf("%d stops, after %v", h.stopped.Load(), took)
			}
		})
	}
}

func TestRelay_checksOfFactories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	route := Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Outside: true,
		Factory: func(string) (Handler, error) {
			return HandlerFunc(func(context.Context, *Msg) error { return nil }), nil
		},
	}
	for want, check := range map[string]func(context.Context) error{
		"no such template":              func(context.Context) error { return errors.New("no such template") },
		"panic: broken":                 func(context.Context) error { panic("broken") },
		"nil *consumer.declined as err": func(context.Context) error { var none *declined; return none },
	} {
		route.Check = check
		r, err := New(w.nc, Config{Logger: quiet}, route)
		if err != nil {
			t.Fatal(err)
		}
		var setup *SetupError
		if err := r.Run(t.Context()); !errors.As(err, &setup) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	route.Check = nil
	r, err := New(w.nc, Config{Logger: quiet}, route)
	if err != nil {
		t.Fatal(err)
	}
	if r.engine.Routes.All()[0].Guarded || !r.engine.Routes.All()[0].Spec.Code.OwnBytes {
		t.Error("Outside says nothing of the factory")
	}
}
