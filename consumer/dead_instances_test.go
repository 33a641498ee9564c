package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/supervisor"
)

// What an instance had in hand that was killed came again after ack_wait, though the others knew after moments that it is gone.
func TestRelay_regressionInFlightOfADeadInstanceComesSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	starts := map[string][]string{} // instances, by body
	at := map[string]time.Time{}    // the last start
	hold := make(chan struct{})
	var relays []*Relay
	instance := func(name string) (nc *nats.Conn, stop func()) {
		nc = w.s.Conn(t)
		r, err := New(nc, Config{Instance: name, Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)).With("at", name), Drain: time.Second}, Route{
			Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, AckWait: time.Minute, Concurrency: 64,
			Retry:      Retry{Backoff: supervisor.Backoff{Min: 20 * time.Second, Jitter: new(0.0)}},
			Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
			Handler: elsewhere(func(ctx context.Context, m *Msg) error {
				body := string(m.Data)
				mu.Lock()
				starts[body] = append(starts[body], name)
				at[body] = time.Now()
				again := len(starts[body]) > 1
				mu.Unlock()
				switch {
				case m.Subject == "orders.fails" && !again:
					return errors.New("not now")
				case m.Subject == "orders.slow" && !again:
					select {
					case <-hold:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		relays = append(relays, r)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Run(ctx)
		}()
		stop = sync.OnceFunc(func() {
			cancel()
			<-done
		})
		t.Cleanup(stop)
		w.eventually(name+" is ready", func() bool { return r.Ready() == nil })
		return nc, stop
	}
	defer close(hold)
	nc, _ := instance("a")
	instance("b")
	instance("c")
	publish := func(subject string, n int) {
		for i := range n {
			if _, err := w.js.Publish(t.Context(), subject, fmt.Appendf(nil, "%s-%d", subject, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("orders.fails", 30) // they wait for their delay
	by := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		n := map[string]int{}
		for body, who := range starts {
			if body[:len("orders.slow")] == "orders.slow" {
				n[who[0]]++
			}
		}
		return n
	}
	w.eventually("they failed", func() bool { mu.Lock(); defer mu.Unlock(); return len(starts) == 30 })
	w.eventually("they are given back, and not in the hand of whoever is killed", func() bool {
		return !slices.ContainsFunc(relays, func(r *Relay) bool {
			return slices.ContainsFunc(r.engine.Running.Sources(), func(s *source.Source) bool { st := s.Session.Stats(); return st.Live > 0 || st.Unconfirmed > 0 })
		})
	})
	publish("orders.slow", 30)
	w.eventually("each has some in hand", func() bool { n := by(); return n["a"]+n["b"]+n["c"] == 30 && n["a"] > 0 && n["b"]+n["c"] > 0 })
	had := by()["a"]
	killed := time.Now()
	nc.Close() // all that the server sees of a kill
	again := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for body, who := range starts {
			if body[:len("orders.slow")] == "orders.slow" && len(who) > 1 {
				n++
			}
		}
		return n
	}
	w.eventually("what it had in hand comes again", func() bool { return again() == had })
	took := time.Since(killed)
	t.Logf("%d messages of the dead one came again after %v", had, took)
	if took > 15*time.Second { // 3 s on a machine that does nothing else
		t.Errorf("they came after %v", took)
	}
	time.Sleep(time.Second)
	mu.Lock()
	defer mu.Unlock()
	for body, who := range starts {
		slow := body[:len("orders.slow")] == "orders.slow"
		switch {
		case slow && who[0] != "a" && len(who) > 1:
			t.Errorf("%s was in hand of %s, and started again: %v", body, who[0], who)
		case slow && len(who) > 2:
			t.Errorf("%s: %v", body, who)
		case !slow && len(who) > 1 && time.Since(killed) < 15*time.Second:
			t.Errorf("%s waits for its delay, and started again: %v", body, who)
		}
	}
}

// elsewhere is a handler that does its work in another process.
type elsewhere func(ctx context.Context, m *Msg) error

func (f elsewhere) Handle(ctx context.Context, m *Msg) error { return f(ctx, m) }

func (elsewhere) OutOfProcess() {}
