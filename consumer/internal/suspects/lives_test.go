package suspects

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// lives are n processes of a service that have begun.
func lives(t *testing.T, n int) (list []*Lives) {
	t.Helper()
	s := natstest.Start(t)
	for range n {
		nc := s.Conn(t)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(t.Context(), Config{Conn: nc, JS: js, Service: "relay", Instance: "here", Began: time.Now(), Replicas: 1, Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			l.Cover(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			err = l.Begin(ctx)
			cancel()
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, l)
	}
	return list
}

func TestLives_whoEndsIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	list := lives(t, 3)
	if died, err := list[0].Recent(t.Context()); died || err != nil {
		t.Errorf("all live: %v, %v", died, err)
	}
	list[1].End(t.Context())
	list[0].looked = time.Time{}
	if died, err := list[0].Recent(t.Context()); died || err != nil {
		t.Errorf("one ended: %v, %v", died, err)
	}
	if ended, err := list[0].Ended(t.Context(), list[2].ID()); ended || !errors.Is(err, ErrThere) {
		t.Errorf("one that lives: %v, %v", ended, err)
	}
	list[2].cfg.Conn.Close() // all that the others see of a death
	list[0].looked = time.Time{}
	if died, err := list[0].Recent(t.Context()); !died || err != nil {
		t.Errorf("one died: %v, %v", died, err)
	}
	if ended, err := list[0].Ended(t.Context(), list[2].ID()); !ended || err != nil {
		t.Errorf("one that died: %v, %v", ended, err)
	}
}

// After a restart of the server the others may take longer to reconnect: a process was charged that was on its way back.
func TestLives_regressionWhoReconnectsIsNotCharged(t *testing.T) {
	t.Parallel()
	l := lives(t, 1)[0]
	l.Reconnected(time.Now())
	back := make(chan error, 1)
	time.AfterFunc(2*askAgain, func() {
		_, err := l.cfg.Conn.Subscribe(l.subject("OTHER"), func(m *nats.Msg) { _ = m.Respond(nil) })
		back <- err
	})
	ended, err := l.Ended(t.Context(), "OTHER")
	if ended || !errors.Is(err, ErrThere) {
		t.Errorf("ended %v, %v", ended, err)
	}
	if err := <-back; err != nil {
		t.Error(err)
	}
}

func TestLives_whoWaitsForALookGoesWithItsContext(t *testing.T) {
	t.Parallel()
	l := lives(t, 1)[0]
	done, err := l.Turn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Recent(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context is done", err)
	}
}

func TestLives_howLongALookIsGood(t *testing.T) {
	for wait, want := range map[time.Duration]time.Duration{time.Second: minLook, 8 * time.Second: 2 * time.Second, 5 * time.Minute: maxLook} {
		l := &Lives{every: maxLook}
		if l.Cover(wait); l.pace() != want {
			t.Errorf("AckWait %v: %v, want %v", wait, l.pace(), want)
		}
	}
}
