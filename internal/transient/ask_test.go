package transient_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/transient"
)

// What was asked before the connection was lost is asked again over the next one, at once.
func TestAsk(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	link := natstest.NewProxy(t, s.URL())
	nc := link.Conn(t)
	there := s.Conn(t)
	asked := 0
	answering, err := there.Subscribe("question", func(m *nats.Msg) {
		if asked++; asked == 1 {
			link.Cut() // its answer is lost
			return
		}
		_ = m.Respond([]byte("answer"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := there.Flush(); err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context) (string, error) {
		m, err := nc.RequestWithContext(ctx, "question", nil)
		if err != nil {
			return "", err
		}
		return string(m.Data), nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if answer, err := transient.Ask(ctx, nc, ask); answer != "answer" || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
	if answer, err := transient.Ask(ctx, nc, ask); answer != "answer" || err != nil {
		t.Errorf("with no cut: %q, %v", answer, err)
	}

	if err := answering.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := there.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := transient.Ask(ctx, nc, ask); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("an error is an answer, too: %v", err)
	}
	if _, err := there.Subscribe("question", func(*nats.Msg) { cancel() }); err != nil {
		t.Fatal(err)
	}
	if err := there.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := transient.Ask(ctx, nc, ask); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	nc.Close()
	if _, err := transient.Ask(t.Context(), nc, ask); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("closed for good: %v", err)
	}
}

// A flush ends with ErrConnectionClosed when its connection is lost. relay's start took that for the end.
func TestDo_regressionAFlushIsCut(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	link := natstest.NewProxy(t, s.URL())
	nc := link.Conn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	link.Stall()
	cut := time.AfterFunc(50*time.Millisecond, func() {
		link.Cut()
		link.Resume()
	})
	defer cut.Stop()
	tries := 0
	if err := transient.Do(ctx, nc, func(ctx context.Context) error {
		tries++
		return nc.FlushWithContext(ctx)
	}); err != nil || tries < 2 {
		t.Errorf("%v, tried %d times", err, tries)
	}
}

// What must not be done twice ends with the connection.
func TestOnce(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	link := natstest.NewProxy(t, s.URL())
	nc := link.Conn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tries := 0
	if err := transient.Once(ctx, nc, func(ctx context.Context) error {
		tries++
		link.Cut()
		<-ctx.Done()
		return ctx.Err()
	}); !errors.Is(err, nats.ErrDisconnected) || tries != 1 {
		t.Errorf("%v, tried %d times", err, tries)
	}
	if err := transient.Once(ctx, nc, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
