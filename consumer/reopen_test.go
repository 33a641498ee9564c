package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// anew is a world in which a durable is made again.
type anew struct {
	*world
	relay *Relay
}

func (w *anew) makeDurable(c jetstream.ConsumerConfig) {
	w.t.Helper()
	_, err := w.js.CreateOrUpdateConsumer(w.t.Context(), "ORDERS", c)
	w.do(err)
}

func (w *anew) purge() {
	w.t.Helper()
	st, err := w.js.Stream(w.t.Context(), "ORDERS")
	w.do(err)
	w.do(st.Purge(w.t.Context()))
}

// F22, F23: what was deleted and is made again by an operator goes on by itself. What was in hand settles nothing in the
// new stream, whose sequences are the same.
func TestRelay_durableOrStreamMadeAnewGoesOn(t *testing.T) {
	t.Parallel()
	for _, order := range []supervisor.Order{"none", supervisor.OrderKey} {
		for name, replaced := range map[string]func(w *anew, config jetstream.ConsumerConfig){
			"durable": func(w *anew, config jetstream.ConsumerConfig) {
				w.do(w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing"))
				w.purge()
				w.makeDurable(config)
			},
			"stream": func(w *anew, config jetstream.ConsumerConfig) {
				w.do(w.js.DeleteStream(w.t.Context(), "ORDERS"))
				w.stream("ORDERS", "orders.>")
				w.makeDurable(config)
			},
			"durable, at first with other settings": func(w *anew, config jetstream.ConsumerConfig) {
				w.do(w.js.DeleteStream(w.t.Context(), "ORDERS"))
				w.stream("ORDERS", "orders.>")
				other := config
				other.AckWait = 9 * time.Second
				w.makeDurable(other)
				w.eventually("the difference is said", func() bool {
					err := w.relay.Ready()
					return err != nil && strings.Contains(err.Error(), "ack_wait is 9s")
				})
				w.makeDurable(config)
			},
		} {
			t.Run(string(order)+" "+name, func(t *testing.T) {
				t.Parallel()
				w := &anew{world: newWorld(t)}
				old, fresh := newLedger(), newLedger()
				var second atomic.Bool
				release := make(chan struct{})
				w.relay, _ = w.start(Config{Logger: quiet}, Route{
					Name: "billing", Subjects: []string{"orders.>"}, AckWait: 2 * time.Second, Concurrency: 8, Order: order, Start: Start{Policy: "all"},
					Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
						if string(m.Data) == "new" {
							fresh.note(m)
							return nil
						}
						old.note(m)
						if !second.Load() {
							<-release // they end once the new ones are there
						}
						return nil
					}),
				})
				config := w.info("ORDERS", "billing").Config
				// So few that a pull is parked, on which the server says that the durable is gone. A durable without one gets the next pull together with
				// the acks of the handlers that made room for it, and nothing can tell the server which of these are of the durable before.
				for _, subject := range []string{"orders.a", "orders.b", "orders.c"} {
					w.publish(subject, 4)
				}
				w.eventually("handlers run", func() bool { return old.len() >= 3 })
				replaced(w, config)
				const n = 30
				for range n {
					if _, err := w.js.Publish(t.Context(), "orders.a", []byte("new")); err != nil {
						t.Fatal(err)
					}
				}
				second.Store(true)
				close(release)
				w.eventually("the new ones are handled without a restart", func() bool { return fresh.len() == n })
				w.settled("ORDERS", "billing")
				w.eventually("ready", func() bool { return w.relay.Ready() == nil })
				fresh.mu.Lock()
				defer fresh.mu.Unlock()
				for id, times := range fresh.seen {
					if times > 1 {
						t.Errorf("%s was handled %d times", id, times)
					}
				}
			})
		}
	}
}

// A replayed message in hand at a crash had the order of the others begin with its return: new ones were started before an
// older one of their key, which was in hand, too, and came back later.
func TestRelay_regressionReplaysInHandDoNotOpenTheGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var order []uint64
	route := Route{
		Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey, AckWait: time.Second,
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			mu.Lock()
			defer mu.Unlock()
			if m.Subject == "orders.eu" {
				order = append(order, m.Sequence)
			}
			return nil
		}),
	}
	_, stop := w.start(Config{Logger: quiet}, route)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	inHand := func(stream, name string, m *nats.Msg) {
		t.Helper()
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		w.pull(stream, name)
	}
	replayed := retry.Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 99, Time: time.Now(), Subject: "orders.us"}
	inHand("RELAY_RETRY", "billing--ORDERS", &nats.Msg{Subject: "relay.due.billing.ORDERS.x", Header: retry.Wrap(replayed, nil)}) // it comes back first
	time.Sleep(500 * time.Millisecond)
	inHand("ORDERS", "billing", &nats.Msg{Subject: "orders.eu"})
	w.publish("orders.eu", 5)
	w.start(Config{Logger: quiet}, route)
	w.settled("ORDERS", "billing")
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, []uint64{1, 2, 3, 4, 5, 6}) {
		t.Errorf("handled in the order %d", order)
	}
}

// What was published before relay had noticed that a durable was made again went to pulls of the session before, to which the new durable was pinned. It
// was handled after a minute, and not in the order of its key; on a durable of many instances some of it was handled twice.
func TestRelay_regressionWhatComesBeforeADurableMadeAgainIsNoticed(t *testing.T) {
	t.Parallel()
	for name, route := range map[string]Route{
		"one instance": {Instances: InstancesOne},
		"ordered, one": {Instances: InstancesOne, Order: supervisor.OrderKey},
		"ordered, all": {Order: supervisor.OrderKey},
		"all":          {},
	} {
		for _, deleted := range []string{"stream", "durable"} {
			t.Run(name+" "+deleted, func(t *testing.T) {
				t.Parallel()
				w, route := &anew{world: newWorld(t)}, route
				fresh, began, end := newLedger(), make(chan struct{}, 100), make(chan struct{})
				var mu sync.Mutex
				last := map[string]uint64{}
				route.Name, route.Subjects, route.AckWait, route.Concurrency, route.Start = "billing", []string{"orders.>"}, time.Minute, 8, Start{Policy: "all"}
				route.Handler = HandlerFunc(func(_ context.Context, m *Msg) error {
					if string(m.Data) != "new" {
						began <- struct{}{}
						<-end
						return nil
					}
					fresh.note(m)
					mu.Lock()
					defer mu.Unlock()
					if route.Order == supervisor.OrderKey && m.Sequence < last[m.Subject] {
						t.Errorf("%d of %s came after %d", m.Sequence, m.Subject, last[m.Subject])
					}
					last[m.Subject] = m.Sequence
					return nil
				})
				w.relay, _ = w.start(Config{Logger: quiet}, route)
				defer close(end)
				config := w.info("ORDERS", "billing").Config
				old, n, pause := 1+rand.IntN(5), 1+rand.IntN(40), time.Duration(rand.IntN(100))*time.Millisecond
				if rand.IntN(2) == 0 {
					n, pause = 300+rand.IntN(700), 0 // more than are looked at at once
				}
				for i := range old {
					w.publish(fmt.Sprintf("orders.old.%d", i), 1)
				}
				for range old {
					<-began
				}
				if deleted == "stream" {
					w.do(w.js.DeleteStream(t.Context(), "ORDERS"))
					w.stream("ORDERS", "orders.>")
				} else {
					w.do(w.js.DeleteConsumer(t.Context(), "ORDERS", "billing"))
					w.purge()
				}
				w.makeDurable(config)
				for i := range n {
					_, err := w.js.Publish(t.Context(), fmt.Sprintf("orders.%d", i%3), []byte("new"))
					w.do(err)
					time.Sleep(pause)
				}
				w.eventually(fmt.Sprintf("all of %d are handled, after %d old ones, with %s between them", n, old, pause), func() bool { return fresh.len() == n })
				w.settled("ORDERS", "billing")
				fresh.mu.Lock()
				defer fresh.mu.Unlock()
				for id, times := range fresh.seen {
					if times > 1 {
						t.Errorf("%s was handled %d times", id, times)
					}
				}
			})
		}
	}
}
