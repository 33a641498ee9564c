package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
)

// Run used to wait for its context for ever, with nothing that could still work.
func TestRun_regressionItEndsWhenTheConnectionIsClosedForGood(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"before": true, "while it runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			nc := w.s.Conn(t, nats.ReconnectBufSize(-1))
			r, err := New(nc, Config{Drain: 5 * time.Second}, Route{
				Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
			})
			if err != nil {
				t.Fatal(err)
			}
			if first {
				nc.Close()
			}
			done := make(chan error, 1)
			go func() { done <- r.Run(context.Background()) }()
			if !first {
				w.eventually("it is ready", func() bool { return r.Ready() == nil })
				nc.Close()
			}
			select {
			case err := <-done:
				if !errors.Is(err, nats.ErrConnectionClosed) {
					t.Errorf("Run returned %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("Run does not end")
			}
		})
	}
}

// The end of a drain waited for a flush of verdicts that was under way, which tries for half a minute.
func TestRun_regressionADrainEndsAlthoughAVerdictOfAReplayCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, stop := w.start(Config{Drain: time.Second}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	w.s.Stop()
	r.engine.Replayed.Add("01JOB", dlq.Verdict{Message: "ORDERS-1-1-r1", OK: true})
	began := time.Now()
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a drain of 1s takes %v", took)
	}
}

// Status and Ready may be asked at any time: /readyz is served before Run begins.
func TestRun_regressionStatusBesideItsBeginIsNoDataRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, err := New(w.s.Conn(t), Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); !s.Started.IsZero() || s.Ready {
		t.Errorf("before Run: %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.eventually("it is ready", func() bool { s := r.Status(); return s.Ready && !s.Started.IsZero() })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
