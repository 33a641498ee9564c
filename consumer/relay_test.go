package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(killedURL); url != "" {
		runKilled(url)
		return
	}
	goleak.VerifyTestMain(m, natstest.Leaks()...)
}

// world is a server with a stream, and relays on it.
type world struct {
	t  *testing.T
	s  *natstest.Server
	nc *nats.Conn
	js jetstream.JetStream
}

func newWorld(t *testing.T, opts ...natstest.Option) *world {
	s := natstest.Start(t, opts...)
	nc := s.Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: s, nc: nc, js: js}
	w.stream("ORDERS", "orders.>")
	return w
}

func (w *world) stream(name string, subjects ...string) jetstream.Stream {
	w.t.Helper()
	st, err := w.js.CreateStream(w.t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects})
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

func (w *world) publish(subject string, n int) {
	w.t.Helper()
	for i := range n {
		w.eventually("a stream takes "+subject, func() bool {
			_, err := w.js.Publish(w.t.Context(), subject, fmt.Appendf(nil, `{"n":%d}`, i))
			if err != nil && !errors.Is(err, jetstream.ErrNoStreamResponse) { // the other servers of a cluster hear a moment later of a stream that is back
				w.t.Fatal(err)
			}
			return err == nil
		})
	}
}

// start runs a relay until the test ends, or until stop is called, which returns what Run returned.
func (w *world) start(cfg Config, routes ...Route) (r *Relay, stop func() error) {
	w.t.Helper()
	r, stop = w.startUnready(cfg, routes...)
	w.eventually("relay is ready", func() bool { return r.Ready() == nil })
	return r, stop
}

// quiet is for tests with more messages than anybody reads the log of.
var quiet = slog.New(slog.DiscardHandler)

// startUnready is start for a relay of which something does not work.
func (w *world) startUnready(cfg Config, routes ...Route) (r *Relay, stop func() error) {
	w.t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testLog{w.t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r, err := New(w.s.Conn(w.t, nats.ReconnectBufSize(-1)), cfg, routes...)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(40 * time.Second):
			w.t.Error("Run does not return")
			return nil
		}
	})
	w.t.Cleanup(func() { _ = stop() })
	w.eventually("relay runs", func() bool {
		if len(done) > 0 {
			w.t.Fatalf("Run returned %v", <-done)
		}
		return len(r.engine.Running.Sources()) > 0
	})
	return r, stop
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// eventually polls what the server or another goroutine brings about. Its patience is for a busy machine.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, ok)
}

// stays waits until something has been so for half a second: when relay and the server may change it a few times more.
func (w *world) stays(what string, ok func() bool) {
	w.t.Helper()
	since := time.Now()
	w.eventually(what+", and stays so", func() bool {
		if !ok() {
			since = time.Now()
		}
		return time.Since(since) > 500*time.Millisecond
	})
}

func (w *world) info(stream, durable string) *jetstream.ConsumerInfo {
	w.t.Helper()
	var c jetstream.Consumer
	w.eventually("the server tells of durable "+durable, func() bool {
		var err error
		if c, err = w.js.Consumer(w.t.Context(), stream, durable); err != nil && !transient.Is(err) { // a question is lost with a server that is killed
			w.t.Fatal(err)
		}
		return err == nil
	})
	return c.CachedInfo()
}

// countedAfter is when a message that was stored is certainly among those that are pending.
const countedAfter = 30 * time.Millisecond

// settled waits until the durable has nothing left to do.
func (w *world) settled(stream, durable string) {
	w.t.Helper()
	// What was just stored is counted as pending a moment later.
	var since time.Time
	w.eventually(durable+" is settled", func() bool {
		if info := w.info(stream, durable); info.NumPending > 0 || info.NumAckPending > 0 {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= countedAfter
	})
}

func (w *world) deadLetters() (list []dlq.Entry) {
	w.t.Helper()
	store, err := dlq.Attach(w.t.Context(), w.js, "")
	if err != nil {
		w.t.Fatal(err)
	}
	for e, err := range store.List(w.t.Context(), dlq.Filter{WithBody: true}) {
		if err != nil {
			w.t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// ledger is what the handlers saw.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

func newLedger() *ledger { return &ledger{seen: map[string]int{}} }

func (l *ledger) note(m *Msg) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[m.ID]++
	return l.seen[m.ID]
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

func TestRelay_messagesAreHandledAndAcked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	_, stop := w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
	})
	w.publish("orders.eu.created", 500)
	w.eventually("all are handled", func() bool { return l.len() == 500 }) // the server counts what is pending a little later
	w.settled("ORDERS", "billing")
	if c := w.info("ORDERS", "billing").Config; c.FilterSubject != "" || c.MaxDeliver != -1 || c.AckPolicy != jetstream.AckExplicitPolicy {
		t.Errorf("durable made as %+v", c)
	}
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

func TestRelay_failedMessageIsRetriedByPolicyAndDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var starts []time.Time
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry: Retry{MaxAttempts: 3, Backoff: supervisor.Backoff{Min: 200 * time.Millisecond, Jitter: new(0.0)}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Now())
			if m.Attempt != len(starts) {
				t.Errorf("attempt %d at start %d", m.Attempt, len(starts))
			}
			m.Data[0] = 'X' // a handler may do what it likes with its bytes
			return errors.New("no such customer")
		}),
	})
	m := nats.NewMsg("orders.eu.created")
	m.Header.Set("Trace", "abc")
	m.Header.Set("Nats-Msg-Id", "order-1")
	m.Data = []byte(`{"id":1}`)
	if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	w.eventually("dead letter", func() bool { return len(w.deadLetters()) == 1 })
	w.settled("ORDERS", "billing")
	e := w.deadLetters()[0]
	if string(e.Data) != `{"id":1}` || e.Header.Get("Trace") != "abc" || e.Header.Get("Nats-Msg-Id") != "order-1" {
		t.Errorf("entry %q %v", e.Data, e.Header)
	}
	if e.Reason != dlq.Exhausted || e.Attempts != 3 || e.LastError != "no such customer" || e.Subject != "orders.eu.created" {
		t.Errorf("entry %+v", e)
	}
	if len(starts) != 3 {
		t.Fatalf("%d starts, want 3", len(starts))
	}
	for i, want := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond} {
		gap := starts[i+1].Sub(starts[i])
		if gap < want-50*time.Millisecond || gap > want+time.Second {
			t.Errorf("gap %d is %v, want %v", i, gap, want)
		}
	}
	// Nothing is left of the message.
	w.eventually("attempts forgotten", func() bool {
		st, err := w.js.Stream(t.Context(), "KV_RELAY_ATTEMPTS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	})
}

func TestRelay_timeoutIsNamedInTheDeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(Config{}, Route{
		Name: "slow", Subjects: []string{"orders.slow"}, Timeout: 20 * time.Millisecond, Retry: Retry{MaxAttempts: 1},
		Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
			<-ctx.Done()
			return fmt.Errorf("call billing: %w", ctx.Err())
		}),
	}, Route{
		Name: "own", Subjects: []string{"orders.own"}, Retry: Retry{MaxAttempts: 1},
		Handler: HandlerFunc(func(ctx context.Context, m *Msg) error { return context.DeadlineExceeded }), // of something in the handler
	})
	w.publish("orders.slow", 1)
	w.publish("orders.own", 1)
	w.eventually("dead letters", func() bool { return len(w.deadLetters()) == 2 })
	for _, e := range w.deadLetters() {
		want := map[string]string{
			"orders.slow": "timeout of 20ms: call billing: context deadline exceeded",
			"orders.own":  "context deadline exceeded",
		}[e.Subject]
		if e.LastError != want {
			t.Errorf("%s: %q, want %q", e.Subject, e.LastError, want)
		}
	}
}

func TestRelay_replayReachesTheRouteThatFailedAndNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var broken sync.Map
	broken.Store("yes", true)
	l := newLedger()
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if _, yes := broken.Load("yes"); yes {
				return Dead(errors.New("broken"))
			}
			l.note(m)
			if m.Replay != 1 || m.Subject != "orders.eu.created" || m.Attempt != 1 || m.Stream != "ORDERS" {
				t.Errorf("replayed message %+v", m)
			}
			return nil
		}),
	})
	other, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "other"})
	if err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu.created", 1)
	w.eventually("dead letter", func() bool { return len(w.deadLetters()) == 1 })
	broken.Delete("yes")
	store, err := dlq.Attach(t.Context(), w.js, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Replay(t.Context(), w.deadLetters()[0], dlq.Target{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("replayed message is handled", func() bool { return l.len() == 1 })
	w.settled("RELAY_RETRY", "billing--ORDERS")
	if n := len(w.deadLetters()); n != 0 {
		t.Errorf("%d dead letters left", n)
	}
	if n := other.CachedInfo().NumPending; n > 1 {
		t.Errorf("another durable of the stream sees %d messages, want 1", n)
	}
}

func TestRelay_longWaitIsParkedAndComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry: Retry{ParkAfter: 100 * time.Millisecond, Backoff: supervisor.Backoff{Min: time.Second, Jitter: new(0.0)}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if n := l.note(m); n != m.Attempt {
				t.Errorf("attempt %d at start %d", m.Attempt, n)
			} else if n < 3 {
				return errors.New("not yet")
			}
			if m.Subject != "orders.eu.created" || m.Stream != "ORDERS" || string(m.Data) != `{"n":0}` || len(m.Header) > 0 {
				t.Errorf("message %+v", m)
			}
			return nil
		}),
	})
	w.publish("orders.eu.created", 1)
	w.eventually("handled at the third attempt", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, n := range l.seen {
			if n == 3 {
				return true
			}
		}
		return false
	})
	w.settled("ORDERS", "billing")
	w.settled("RELAY_RETRY", "billing--ORDERS")
	st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
	if err != nil || st.CachedInfo().State.Msgs != 0 {
		t.Errorf("retry stream: %v, %+v", err, st.CachedInfo().State)
	}
}

func TestRelay_panicsLeaveTheProcessAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry:      Retry{Backoff: supervisor.Backoff{Min: 50 * time.Millisecond}},
		Supervisor: supervisor.Config{Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: 10 * time.Millisecond}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if l.note(m) == 1 {
				panic("boom")
			}
			return nil
		}),
	})
	for i := range 20 {
		w.publish(fmt.Sprintf("orders.%d", i), 1)
	}
	w.settled("ORDERS", "billing")
	if len(w.deadLetters()) != 0 {
		t.Error("dead letters")
	}
}

// A message that is larger than stash.bytes could never be the probe of its key, which waited until it expired.
func TestRelay_regressionAMessageLargerThanTheStashIsAProbe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natstest.WithConfig("max_payload: 4MB"))
	l := newLedger()
	w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Stash: Stash{Bytes: 1 << 20},
		Retry: Retry{Backoff: supervisor.Backoff{Min: 100 * time.Millisecond}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if l.note(m) == 1 {
				panic("boom")
			}
			return nil
		}),
	})
	if _, err := w.js.Publish(t.Context(), "orders.eu", make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is handled", func() bool { return l.len() == 1 })
	w.settled("ORDERS", "billing")
}
