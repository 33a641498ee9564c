package requests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// world is a server with two connections: of who asks, and of who answers.
type world struct{ relay, service *nats.Conn }

func setup(t *testing.T) world {
	server := natstest.Start(t)
	return world{server.Conn(t), server.Conn(t)}
}

func (w world) serve(t *testing.T, subject string, f func(*nats.Msg)) {
	t.Helper()
	sub, err := w.service.Subscribe(subject, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := w.service.Flush(); err != nil {
		t.Fatal(err)
	}
}

// Each request gets its own answer, in whatever order these come, and whoever does not wait any more gets none.
func TestRequester_eachGetsItsOwnAnswer(t *testing.T) {
	w := setup(t)
	w.serve(t, "svc", func(m *nats.Msg) {
		after := time.Duration(rand.IntN(3)) * time.Millisecond
		time.AfterFunc(after, func() {
			_ = m.Respond(m.Data)
			_ = m.Respond([]byte("once more"))
		})
	})
	l := New(w.relay)
	t.Cleanup(l.Close)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 100 {
				text := fmt.Appendf(nil, "%d-%d", i, j)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(5000))*time.Microsecond)
				m, err := l.Request(ctx, &nats.Msg{Subject: "svc", Data: text})
				if err == nil && !bytes.Equal(m.Data, text) {
					t.Errorf("%s got %s", text, m.Data)
				}
				if err != nil && !errors.Is(err, ctx.Err()) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if n := len(l.all); n > 20 {
		t.Errorf("%d waiters for 20 at once", n)
	}
}

// A service that was asked once knows where answers go, and must not be able to answer for others.
func TestRequester_nobodyAnswersForOthers(t *testing.T) {
	w := setup(t)
	var known string
	w.serve(t, "svc.first", func(m *nats.Msg) { known = m.Reply; _ = m.Respond(nil) })
	w.serve(t, "svc.second", func(m *nats.Msg) {
		for _, guess := range []string{known, known[:strings.LastIndexByte(known, '.')+1] + "0", known + "1", known[:strings.LastIndexByte(known, '-')+1]} {
			_ = w.service.Publish(guess, []byte("stranger"))
		}
		_ = m.Respond([]byte("service"))
	})
	l := New(w.relay)
	t.Cleanup(l.Close)
	if _, err := l.Request(t.Context(), &nats.Msg{Subject: "svc.first"}); err != nil {
		t.Fatal(err)
	}
	if m, err := l.Request(t.Context(), &nats.Msg{Subject: "svc.second"}); err != nil || string(m.Data) != "service" {
		t.Errorf("%v, %v", m, err)
	}
}

// A connection that is lost ends what was asked at once, and what is asked later gets its answer on the next one. So does what is
// asked after the handler stopped.
func TestRequester_connectionIsLost(t *testing.T) {
	server := natstest.Start(t)
	service, relay := server.Conn(t), server.Conn(t)
	asked := make(chan bool, 10)
	sub, err := service.Subscribe("svc", func(m *nats.Msg) {
		asked <- true
		if len(m.Data) > 0 {
			_ = m.Respond(m.Data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := service.Flush(); err != nil {
		t.Fatal(err)
	}
	l := New(relay)
	t.Cleanup(l.Close)
	ended := make(chan error)
	go func() {
		_, err := l.Request(t.Context(), &nats.Msg{Subject: "svc"})
		ended <- err
	}()
	<-asked
	if err := relay.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, nats.ErrDisconnected) {
		t.Errorf("%v, want %v", err, nats.ErrDisconnected)
	}
	for range 2 {
		if m, err := l.Request(t.Context(), &nats.Msg{Subject: "svc", Data: []byte("x")}); err != nil || string(m.Data) != "x" {
			t.Errorf("%v, %v", m, err)
		}
		l.Close()
	}
	relay.Close()
	if _, err := l.Request(t.Context(), &nats.Msg{Subject: "svc"}); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("%v, want %v", err, nats.ErrConnectionClosed)
	}
}
