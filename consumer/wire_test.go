package consumer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

// wired is a world whose relay reaches the server through a proxy.
func wired(t *testing.T) (*world, *natstest.Proxy) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: s, nc: nc, js: js}
	w.stream("ORDERS", "orders.>")
	return w, natstest.NewProxy(t, s.URL())
}

// startAt is start over a URL.
func (w *world) startAt(url string, routes ...Route) *Relay {
	w.t.Helper()
	nc, err := nats.Connect(url, nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	r, err := New(nc, Config{Logger: slog.New(slog.NewTextHandler(testLog{w.t}, nil))}, routes...)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil && ctx.Err() == nil {
			w.t.Errorf("Run returned %v", err)
		}
	})
	w.t.Cleanup(func() { cancel(); running.Wait() })
	w.eventually("relay is ready", func() bool { return r.Ready() == nil })
	return r
}

// apiCalls counts what is asked of the JetStream API.
func (w *world) apiCalls(subject string) *atomic.Int64 {
	w.t.Helper()
	var n atomic.Int64
	sub, err := w.nc.Subscribe(subject, func(*nats.Msg) { n.Add(1) })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return &n
}

// The server has forgotten the pulls of a connection that is gone. Waiting for missed heartbeats would cost seconds.
func TestRelay_pullsAtOnceAfterAReconnect(t *testing.T) {
	w, proxy := wired(t)
	l := newLedger()
	r := w.startAt(proxy.URL(), Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
	})
	w.publish("orders.eu", 10)
	w.settled("ORDERS", "billing") // it is at work
	for i := range 5 {
		proxy.Cut()
		// What the server sends before it has noticed is away for AckWait; nobody can do anything about that.
		w.eventually("the connection is back", func() bool { return r.engine.Conn.Stats().Reconnects == uint64(i)+1 })
		began := time.Now()
		w.publish("orders.eu", 10)
		w.eventually("messages are handled", func() bool { return l.len() == 10*(i+2) })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("handled %v after the connection was back", took)
		}
	}
	w.settled("ORDERS", "billing")
}

// A link that is silent for longer than AckWait, while handlers that fail run on its one side: another instance gets the
// messages, and nothing that this one says may take them away again.
func TestRelay_stalledInstanceSaysNothing_timed(t *testing.T) {
	timed(t)
	w, proxy := wired(t)
	var stalled, other atomic.Int64
	release := make(chan struct{})
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, AckWait: 2 * time.Second, Concurrency: 8}
	route.Handler = HandlerFunc(func(context.Context, *Msg) error {
		stalled.Add(1)
		<-release
		return errors.New("fails")
	})
	w.startAt(proxy.URL(), route)
	w.publish("orders.eu", 1)
	w.eventually("it runs", func() bool { return stalled.Load() == 1 })
	naks := make(chan string, 100)
	sub, err := w.nc.Subscribe("$JS.ACK.ORDERS.billing.>", func(m *nats.Msg) {
		if strings.HasPrefix(string(m.Data), "-NAK") {
			naks <- m.Subject
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()

	proxy.Stall()
	route.Handler = HandlerFunc(func(context.Context, *Msg) error { other.Add(1); return nil })
	w.start(Config{}, route)
	w.eventually("another instance handles it", func() bool { return other.Load() == 1 })
	close(release) // it fails, and its lease is long over
	proxy.Resume()
	w.settled("ORDERS", "billing")
	if stalled.Load() != 1 || other.Load() != 1 {
		t.Errorf("started %d and %d times", stalled.Load(), other.Load())
	}
	if len(naks) > 0 {
		t.Errorf("NAKed: %s", <-naks)
	}
}

// A refused pull must not become a storm of them.
func TestRelay_noStormWhenPullsAreRefused_timed(t *testing.T) {
	timed(t)
	w := newWorld(t)
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	pulls := w.apiCalls("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing")
	began := time.Now()
	if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", func() jetstream.ConsumerConfig {
		c := w.info("ORDERS", "billing").Config
		c.MaxRequestBatch = 1 // what relay asks for is refused with 409 from now on
		return c
	}()); err != nil {
		t.Fatal(err)
	}
	w.eventually("the back-off has grown", func() bool { return pulls.Load() >= 8 })
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("%d pulls within %v", pulls.Load(), took)
	}
}

// F22, F23: under load, and whether or not a pull is parked at that moment.
func TestRelay_durableThatIsGoneOrAnother(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world) error
		says  string
	}{
		"durable deleted": {func(w *world) error { return w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing") }, "durable billing was deleted"},
		"durable made anew": {func(w *world) error {
			config := w.info("ORDERS", "billing").Config
			if err := w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing"); err != nil {
				return err
			}
			config.AckWait = 9 * time.Second // as it was, it would be used at once
			_, err := w.js.CreateConsumer(w.t.Context(), "ORDERS", config)
			return err
		}, "durable billing was deleted and created again"},
		"stream deleted": {func(w *world) error { return w.js.DeleteStream(w.t.Context(), "ORDERS") }, "stream ORDERS was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r, _ := w.start(Config{}, Route{
				Name: "billing", Subjects: []string{"orders.>"},
				Handler: HandlerFunc(func(ctx context.Context, _ *Msg) error { transient.Pause(ctx, time.Millisecond); return nil }),
			})
			ctx, cancel := context.WithCancel(t.Context())
			var load sync.WaitGroup
			load.Go(func() {
				for ctx.Err() == nil {
					_, _ = w.js.PublishAsync("orders.eu", []byte("{}"))
					transient.Pause(ctx, time.Millisecond)
				}
			})
			defer load.Wait()
			defer cancel()
			if err := c.spoil(w); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			w.eventually("it is noticed", func() bool {
				err := r.Ready()
				return err != nil && strings.Contains(err.Error(), c.says)
			})
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("noticed after %v", took)
			}
		})
	}
}

// What is in flight when an instance leaves is with the next one at once, not after AckWait.
func TestRelay_drainLosesNothingOnTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	route := Route{
		Name: "billing", Subjects: []string{"orders.>"}, AckWait: 30 * time.Second,
		Handler: HandlerFunc(func(ctx context.Context, m *Msg) error { l.note(m); return nil }),
	}
	const rounds, n = 10, 300
	for i := range rounds {
		_, stop := w.start(Config{}, route)
		w.publish("orders.eu", n)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if info := w.info("ORDERS", "billing"); info.NumAckPending > 0 {
			// Given back is given back at once: whoever comes next has it, and need not wait for AckWait.
			t.Logf("round %d: %d given back", i, info.NumAckPending)
		}
	}
	began := time.Now()
	w.start(Config{}, route)
	w.settled("ORDERS", "billing")
	if took := time.Since(began); took > 10*time.Second || l.len() != rounds*n {
		t.Errorf("%d of %d handled, the last %v after the last stop", l.len(), rounds*n, took)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, times := range l.seen {
		if times > 1 {
			t.Errorf("%s was handled %d times", id, times)
		}
	}
}

// The preflight tries every subject with something that has no effect.
func TestRelay_preflightLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	w.publish("orders.eu", 1)
	_, stop := w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
	})
	w.settled("ORDERS", "billing")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for stream, durable := range map[string]string{"ORDERS": "billing", "RELAY_RETRY": "billing--ORDERS"} {
		w.eventually("no pull is parked", func() bool { return w.info(stream, durable).NumWaiting == 0 })
		if i := w.info(stream, durable); i.NumAckPending != 0 || i.NumRedelivered != 0 {
			t.Errorf("%s: %+v", stream, i)
		}
	}
	for _, stream := range []string{"RELAY_RETRY", "RELAY_DLQ", "KV_RELAY_ATTEMPTS"} {
		st, err := w.js.Stream(t.Context(), stream)
		if err != nil || st.CachedInfo().State.Msgs != 0 {
			t.Errorf("%s: %v, %d messages", stream, err, st.CachedInfo().State.Msgs)
		}
	}
	if l.len() != 1 {
		t.Errorf("%d handled", l.len())
	}
}

// Two instances with a message that always fails: together they start it as often as one would.
func TestRelay_attemptsAreCountedOverInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var starts atomic.Int64
	route := Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry:      Retry{MaxAttempts: 8, Backoff: supervisor.Backoff{Min: 20 * time.Millisecond, Max: 20 * time.Millisecond, Jitter: new(0.0)}},
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
		Handler:    HandlerFunc(func(context.Context, *Msg) error { starts.Add(1); return errors.New("fails") }),
	}
	for range 3 {
		w.start(Config{}, route)
	}
	const n = 20
	for range n {
		w.publish("orders.eu", 1)
	}
	w.eventually("all are dead", func() bool { return len(w.deadLetters()) == n })
	if got := starts.Load(); got != 8*n {
		t.Errorf("%d starts, want %d", got, 8*n)
	}
	w.settled("ORDERS", "billing")
}
