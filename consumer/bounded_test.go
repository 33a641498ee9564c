package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// While a durable had a bound of deliveries, the server dropped what a drain gave back.
func TestStrays_regressionNothingIsGivenBackToADurableWithABoundOfDeliveries(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(c *jetstream.ConsumerConfig){
		"max_deliver": func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 },
		"backoff": func(c *jetstream.ConsumerConfig) {
			c.MaxDeliver, c.BackOff = 2, []time.Duration{30 * time.Second}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var handled atomic.Int64
			fail := make(chan struct{})
			route := Route{Name: "billing", Subjects: []string{"orders.>"}, Key: "route", Concurrency: 1, Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
				if m.Attempt == 1 && m.Subject == "orders.first" {
					<-fail
					return errors.New("not yet")
				}
				handled.Add(1)
				return nil
			})}
			r, stop := w.start(Config{Logger: quiet}, route)
			w.publish("orders.first", 1)
			w.publish("orders.waits", 20)
			w.eventually("all are here", func() bool { return w.info("ORDERS", "billing").NumAckPending == 21 })
			good := w.info("ORDERS", "billing").Config
			edited := good
			edit(&edited)
			if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", edited); err != nil {
				t.Fatal(err)
			}
			w.eventually("it is said", func() bool { return r.Ready() != nil })
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			w.eventually("relay drains", func() bool { return r.engine.Running.Sources()[0].Pulls.IsDraining() })
			close(fail)
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			if n := w.kept("relay.>"); n != 21 {
				t.Errorf("%d messages left for the retry stream, want 21", n)
			}
			if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", good); err != nil {
				t.Fatal(err)
			}
			w.start(Config{Logger: quiet}, route)
			w.eventually("all are handled", func() bool { return handled.Load() >= 21 })
		})
	}
}

// A failure that could not be parked either was given back, and dropped.
func TestStrays_regressionAFailureIsHeldWhileADurableIsBoundedAndNothingCanBeParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var handled atomic.Int64
	fail := make(chan struct{})
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		if m.Attempt == 1 {
			<-fail
			return errors.New("not yet")
		}
		handled.Add(1)
		return nil
	})})
	w.publish("orders.eu", 3)
	w.eventually("it runs", func() bool { return w.info("ORDERS", "billing").NumAckPending == 3 })
	edited := w.info("ORDERS", "billing").Config
	edited.MaxDeliver = 1
	if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", edited); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is said", func() bool { return r.Ready() != nil })
	accept := w.refuses("RELAY_RETRY")
	close(fail)
	held := r.engine.Routes.All()[0].Path.Held
	w.eventually("they are held", func() bool { return held() == 3 })
	accept()
	w.eventually("they are handled from the retry stream", func() bool { return handled.Load() == 3 })
}
