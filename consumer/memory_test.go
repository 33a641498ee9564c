package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/supervisor"
)

// Dead letters that nobody answered waited where nothing counted them: 5,744 messages of 32 KiB, and whatever else the durable
// allows. Healthy messages go on meanwhile, and all is well afterwards.
func TestRelay_deadLettersThatAreNotAnsweredAreBounded(t *testing.T) {
	t.Parallel() // it waits for time-outs
	w := newWorld(t)
	var healthy, bad atomic.Int64
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Concurrency: 16, Stash: Stash{Bytes: 1 << 20},
		Supervisor: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0), DeadTrip: supervisor.DeadTrip{Of: new(0)}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if m.Subject == "orders.healthy" {
				healthy.Add(1)
				return nil
			}
			bad.Add(1)
			return Dead(errors.New("nobody can"))
		}),
	})
	dead, err := w.js.Stream(t.Context(), "RELAY_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.js.DeleteStream(t.Context(), "RELAY_DLQ"); err != nil {
		t.Fatal(err)
	}
	silence, err := w.nc.Subscribe("relay.dlq.>", func(*nats.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	const messages = 650
	body := make([]byte, 100<<10)
	for i := range messages {
		if _, err := w.js.PublishAsync(fmt.Sprintf("orders.%d", i), body); err != nil {
			t.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
	rt, most := r.engine.Routes.All()[0], 0
	look := func() {
		if holds := rt.Memory.Holds(); holds.Bytes > most {
			most = holds.Bytes
		}
	}
	w.eventually("it holds no more than it may", func() bool { look(); return most > rt.Memory.Most().Bytes/2 })
	w.publish("orders.healthy", 10)
	w.eventually("healthy messages are handled", func() bool { look(); return healthy.Load() == 10 })
	// What was under way when the bound was reached is above it.
	if bound := rt.Memory.Most().Bytes + 17*len(body); most > bound {
		t.Errorf("%d bytes are held, want at most %d", most, bound)
	}
	if holds := r.Status().Routes[0]; holds.HeldBytesLimit != rt.Memory.Most().Bytes || holds.HeldMessages == 0 {
		t.Errorf("status: %+v", holds)
	}
	if _, err := w.js.CreateStream(t.Context(), dead.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	_ = silence.Unsubscribe()
	deadline := time.Now().Add(time.Minute)
	stored := func() uint64 {
		info, err := w.js.Stream(t.Context(), "RELAY_DLQ")
		if err != nil {
			t.Fatal(err)
		}
		return info.CachedInfo().State.Msgs
	}
	for stored() < messages && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		look()
	}
	w.settled("ORDERS", "billing")
	w.eventually("nothing is held", func() bool {
		h := rt.Memory.Holds()
		m, b := rt.Memory.InHand.Held()
		return h.Bytes == 0 && m == 0 && b == 0
	})
	if n := bad.Load(); n != messages {
		t.Errorf("%d attempts of %d messages", n, messages)
	}
	t.Logf("at most %d of %d bytes", most, rt.Memory.Most().Bytes)
}
