package consumer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// After many small messages thousands of the next ones are asked for at once. If those are large, they must not be more than
// the server keeps for a connection (max_pending, 64 MiB by default), or it breaks the connection off.
func TestRelay_regressionLargeMessagesAfterSmallOnesDoNotCostTheConnection_timed(t *testing.T) {
	timed(t)
	w := newWorld(t)
	const small, large = 10_000, 1500
	js, err := jetstream.New(w.s.Conn(t), jetstream.WithPublishAsyncMaxPending(256))
	if err != nil {
		t.Fatal(err)
	}
	for i := range small + large {
		size := 100
		if i >= small {
			size = 64 << 10
		}
		if _, err := js.PublishAsync("orders.x", make([]byte, size), jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	var handled atomic.Int64
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "r", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, OwnBytes: true,
		Handler: HandlerFunc(func(context.Context, *Msg) error { handled.Add(1); return nil })})
	w.eventually("all are handled", func() bool { return handled.Load() >= small+large })
	if slow, again := w.s.Look().Slow, r.engine.Conn.Stats().Reconnects; slow != 0 || again != 0 {
		t.Errorf("the server broke %d connections off, relay reconnected %d times", slow, again)
	}
}

// Pulls name how many bytes they are for. A message that was stored when max_payload was larger is more than any of them.
func TestRelay_messageLargerThanMaxPayloadIsHandled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natstest.WithConfig("max_payload: 4MB"))
	for _, size := range []int{10, 3 << 20, 10, 3 << 20, 10} {
		if _, err := w.js.Publish(t.Context(), "orders.x", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	w.s.Configure("max_payload: 1MB")
	w.s.Restart()
	var handled, bytes atomic.Int64
	w.start(Config{}, Route{Name: "r", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { handled.Add(1); bytes.Add(int64(len(m.Data))); return nil })})
	w.eventually("all are handled", func() bool { return handled.Load() == 5 && bytes.Load() == 6<<20+30 })
}

// A replicated durable says that a pull is over before the messages of it come. They were taken for never coming, and what
// was on its way had no bound.
func TestRelay_regressionPullsOfAReplicatedDurableAreBounded_timed(t *testing.T) {
	timed(t)
	const count, size = 150, 300_000
	nodes := natstest.Cluster(t, 3)
	js, err := jetstream.New(nodes[0].Conn(t), jetstream.WithPublishAsyncMaxPending(32))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: nodes[0], js: js}
	w.eventually("the stream is made", func() bool {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: 3})
		return err == nil
	})
	for range count {
		if _, err := js.PublishAsync("orders.x", make([]byte, size), jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	var handled atomic.Int64
	handler := HandlerFunc(func(context.Context, *Msg) error { time.Sleep(50 * time.Millisecond); handled.Add(1); return nil })
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "r", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, OwnBytes: true, Key: "route", Concurrency: 64, Handler: handler,
	})
	most := 0
	w.eventually("all are handled", func() bool {
		most = max(most, r.engine.Routes.All()[0].Group.Status().Window)
		return handled.Load() >= count
	})
	if limit := 16<<20/size + 1; most > limit {
		t.Errorf("%d messages of %d bytes waited, more than %d", most, size, limit)
	}
}

// With many durables each asked for a message of max_payload at least: more in all than the server keeps for a connection.
func TestRelay_regressionManyRoutesWithABacklogDoNotCostTheConnection_timed(t *testing.T) {
	timed(t)
	const routes, each, size = 10, 3, 4_000_000
	w := newWorld(t, natstest.WithConfig("max_payload: 8MB"))
	js, err := jetstream.New(w.s.Conn(t), jetstream.WithPublishAsyncMaxPending(8))
	if err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int64
	handler := HandlerFunc(func(context.Context, *Msg) error { handled.Add(1); return nil })
	var list []Route
	for i := range routes {
		subject := fmt.Sprintf("orders.r%d", i)
		for range each {
			if _, err := js.PublishAsync(subject, make([]byte, size), jetstream.WithStallWait(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, Route{
			Name: fmt.Sprintf("r%d", i), Subjects: []string{subject}, Start: Start{Policy: "all"}, OwnBytes: true, Handler: handler,
		})
	}
	<-js.PublishAsyncComplete()
	r, _ := w.start(Config{Logger: quiet}, list...)
	w.eventually("all are handled", func() bool { return handled.Load() >= routes*each })
	if slow, again := w.s.Look().Slow, r.engine.Conn.Stats().Reconnects; slow != 0 || again != 0 {
		t.Errorf("the server broke %d connections off, relay reconnected %d times", slow, again)
	}
}
