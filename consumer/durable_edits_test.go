package consumer

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A durable was edited while relay ran, and nobody noticed: with a bound of deliveries messages were lost, with headers
// only empty bodies were acknowledged.
func TestRelay_regressionADurableEditedWhileRelayRunsIsNoticed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		field string
		edit  func(c *jetstream.ConsumerConfig)
		stops bool
	}{
		{"max_deliver", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 2 }, true},
		{"backoff", func(c *jetstream.ConsumerConfig) {
			c.MaxDeliver, c.BackOff = 5, []time.Duration{30 * time.Second, time.Minute}
		}, true},
		{"headers_only", func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, true},
		{"filter_subjects", func(c *jetstream.ConsumerConfig) { c.FilterSubject = "orders.eu.1" }, true},
		{"ack_wait", func(c *jetstream.ConsumerConfig) { c.AckWait = 5 * time.Second }, true},
		{"max_ack_pending", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1 }, false},
	} {
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var handled, empty atomic.Int64
			r, _ := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
				if len(m.Data) == 0 || m.Header.Get("Nats-Msg-Size") != "" {
					empty.Add(1)
				}
				handled.Add(1)
				return nil
			})})
			w.publish("orders.eu.1", 5)
			w.eventually("it works", func() bool { return handled.Load() == 5 })
			good := w.info("ORDERS", "billing").Config
			edited := good
			c.edit(&edited)
			if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", edited); err != nil {
				t.Fatal(err)
			}
			w.publish("orders.eu.1", 5) // may be handled before it is noticed
			w.eventually("it is said", func() bool {
				err := r.Ready()
				return err != nil && strings.Contains(err.Error(), c.field+" is ")
			})
			st := r.Status()
			if trouble := strings.Join(st.Trouble, " "); !strings.Contains(trouble, c.field) {
				t.Errorf("status says %q", trouble)
			}
			if c.stops {
				if st.Routes[0].State != "stopped" {
					t.Errorf("the route is %s", st.Routes[0].State)
				}
				// Pulls that were out when it was noticed, or on their way, end within some seconds.
				w.stays("nothing is asked for", func() bool { return w.info("ORDERS", "billing").NumWaiting == 0 })
				before := handled.Load()
				w.publish("orders.eu.1", 5)
				// The durable counts what the stream took a moment later.
				w.eventually("they wait", func() bool { return w.info("ORDERS", "billing").NumPending >= 5 })
				if handled.Load() > before {
					t.Errorf("%d were handled", handled.Load()-before)
				}
			} else {
				w.publish("orders.eu.1", 5)
			}
			if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", good); err != nil {
				t.Fatal(err)
			}
			w.eventually("it goes on by itself", func() bool { return handled.Load() == 15 && r.Ready() == nil })
			if empty.Load() > 0 {
				t.Errorf("%d were handled without their body", empty.Load())
			}
		})
	}
}

// A message that fails after somebody gave the durable a bound of deliveries must not be lost with its NAK.
func TestRelay_regressionMaxDeliverSetWhileRelayRunsLosesNothing(t *testing.T) {
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
	close(fail)
	w.eventually("they are handled from the retry stream", func() bool { return handled.Load() == 3 })
}

// A pause of the durable is what somebody wanted: it is said, and is no fault.
func TestRelay_aPausedDurableIsSaidAndNoFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
	if _, err := w.js.PauseConsumer(t.Context(), "ORDERS", "billing", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu", 3)
	w.eventually("the pause is said", func() bool {
		rt := r.Status().Routes[0]
		return rt.State == "paused" && strings.Contains(rt.Why, "nats consumer resume") && rt.Until != nil
	})
	if err := r.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if _, err := w.js.ResumeConsumer(t.Context(), "ORDERS", "billing"); err != nil {
		t.Fatal(err)
	}
	w.settled("ORDERS", "billing")
	w.eventually("it flows again", func() bool { return r.Status().Routes[0].State == "flowing" })
}
