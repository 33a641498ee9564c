package consumer

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// After many small messages thousands of the next ones are asked for at once. If those are large, they must not be more than
// the server keeps for a connection (max_pending, 64 MiB by default), or it breaks the connection off.
func TestRelay_regressionLargeMessagesAfterSmallOnesDoNotCostTheConnection(t *testing.T) {
	w := newWorld(t)
	const small, large = 40_000, 1500
	js, err := jetstream.New(w.s.Conn(t), jetstream.WithPublishAsyncMaxPending(256))
	if err != nil {
		t.Fatal(err)
	}
	for i := range small + large {
		size := 100
		if i >= small {
			size = 64 << 10
		}
		if _, err := js.PublishAsync("orders.x", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	var handled atomic.Int64
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "r", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, OwnBytes: true,
		Handler: HandlerFunc(func(context.Context, *Msg) error { handled.Add(1); return nil })})
	w.eventually("all are handled", func() bool { return handled.Load() >= small+large })
	if slow, again := w.s.Native().NumSlowConsumers(), r.nc.Stats().Reconnects; slow != 0 || again != 0 {
		t.Errorf("the server broke %d connections off, relay reconnected %d times", slow, again)
	}
}

// Pulls name how many bytes they are for. A message that was stored when max_payload was larger is more than any of them.
func TestRelay_messageLargerThanMaxPayloadIsHandled(t *testing.T) {
	limit := int32(4 << 20)
	w := newWorld(t, natstest.WithOptions(func(o *server.Options) { o.MaxPayload = limit }))
	for _, size := range []int{10, 3 << 20, 10, 3 << 20, 10} {
		if _, err := w.js.Publish(t.Context(), "orders.x", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	limit = 1 << 20
	w.s.Restart()
	var handled, bytes atomic.Int64
	w.start(Config{}, Route{Name: "r", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { handled.Add(1); bytes.Add(int64(len(m.Data))); return nil })})
	w.eventually("all are handled", func() bool { return handled.Load() == 5 && bytes.Load() == 6<<20+30 })
}
