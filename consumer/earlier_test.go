package consumer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An instance of v0.2.0 has no entry in the bucket of instances and is not asked. What it handled was given back when another instance died, and
// was handled twice.
func TestRelay_regressionInFlightOfAnEarlierVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := &syncBuffer{}
	instance := func(name string) *Relay {
		r, _ := w.start(Config{Instance: name, Logger: slog.New(slog.NewTextHandler(log, nil)), Drain: time.Second}, Route{
			Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, AckWait: time.Minute,
			Handler: elsewhere(func(context.Context, *Msg) error { return nil }),
		})
		return r
	}
	dies := instance("a")
	instance("b")
	earlier := w.s.Conn(t) // what others see of it
	_, err := earlier.Subscribe("relay.ctl.view.status", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"instance":"old","service":"relay","ready":true,"page":1,"pages":1}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	durable, err := w.js.Consumer(t.Context(), "ORDERS", "billing")
	if err != nil {
		t.Fatal(err)
	}
	var held jetstream.Msg
	w.eventually("it has a message in hand", func() bool {
		got := make(chan jetstream.Msg, 1)
		go func() {
			m, err := durable.Next(jetstream.FetchMaxWait(time.Second))
			if err != nil {
				m = nil
			}
			got <- m
		}()
		for range 50 {
			if _, err := w.js.Publish(t.Context(), "orders.eu", nil); err != nil {
				t.Fatal(err)
			}
		}
		held = <-got
		return held != nil
	})
	dies.engine.Conn.Close() // all that the server sees of a kill
	w.eventually("the others have looked", func() bool {
		return log.count("are redelivered now")+log.count("instance old runs an earlier version") > 0
	})
	if info := w.info("ORDERS", "billing"); info.NumRedelivered > 0 {
		t.Errorf("what it has in hand was given back: %d messages are delivered again", info.NumRedelivered)
	}
	if err := held.DoubleAck(t.Context()); err != nil {
		t.Error(err)
	}
}
