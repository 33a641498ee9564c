package consumer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
)

// sixOfTheService is a limit of six over all instances.
func sixOfTheService() map[string]Limit {
	return map[string]Limit{"gateway": {Concurrency: 6, Scope: ScopeService}}
}

// shared runs an instance of a service with that limit, on a connection of its own.
func (w *world) shared(name string, route Route) (r *Relay, nc *nats.Conn, stop func() error) {
	w.t.Helper()
	nc = w.s.Conn(w.t, nats.ReconnectBufSize(-1))
	r, err := New(nc, Config{Instance: name, Logger: quiet, Limits: sixOfTheService(), Drain: 5 * time.Second}, route)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	w.t.Cleanup(func() { _ = stop() })
	return r, nc, stop
}

// partOf is what an instance has of the limit.
func partOf(r *Relay) int {
	for _, l := range r.Status().Limits {
		return l.Part
	}
	return 0
}

// Three instances share a limit of six: never more than six handlers run at once over all, the part of one that ends and of one that is
// killed is for the others, and the status of each says what all have.
func TestLimits_ofTheServiceHoldOverInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := new(crowd)
	hold := make(chan struct{})
	var holds atomic.Bool
	work := func(name string) Route {
		return Route{Name: "a", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Limits: []string{"gateway"}, Handler: HandlerFunc(func(ctx context.Context, _ *Msg) error {
			if holds.Load() && name != "i1" {
				return h.handle(ctx, hold)
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			defer cancel()
			return h.handle(ctx, short.Done())
		})}
	}
	relays, conns, stops := map[string]*Relay{}, map[string]*nats.Conn{}, map[string]func() error{}
	for _, name := range []string{"i0", "i1", "i2", "i3"} {
		relays[name], conns[name], stops[name] = w.shared(name, work(name))
	}
	const all = 300
	for i := range all {
		w.publish(fmt.Sprintf("orders.%d", i%30), 1)
	}
	w.eventually("half is handled", func() bool { return h.done.Load() > all/2 })
	if err := stops["i0"](); err != nil {
		t.Error(err)
	}
	w.eventually("all are handled", func() bool { return h.done.Load() == all })
	w.settled("ORDERS", "a")

	for i := 0; partOf(relays["i1"]) == 0; i++ {
		w.publish(fmt.Sprintf("orders.%d", i%30), 1)
	}
	holds.Store(true)
	conns["i1"].Close() // it can give nothing back
	began := time.Now()
	for i := range 60 {
		w.publish(fmt.Sprintf("orders.%d", i), 1)
	}
	w.eventually("the others have all", func() bool { return partOf(relays["i2"])+partOf(relays["i3"]) == 6 && h.running() == 6 })
	t.Logf("the part of one that was killed is the others' after %v", time.Since(began))
	w.eventually("each says what all have", func() bool {
		for name, other := range map[string]string{"i2": "i3", "i3": "i2"} {
			l := relays[name].Status().Limits[0]
			if l.Scope != ScopeService || l.Concurrency != 6 || l.Others != fmt.Sprintf("others have %s %d", other, partOf(relays[other])) {
				return false
			}
		}
		return true
	})
	close(hold)
	if h.most() > 6 {
		t.Errorf("%d ran at once, 6 are allowed", h.most())
	}
}

// Without the bucket of the fleet a route with a limit of the service holds its messages and says why, other routes go on, and it heals
// by itself.
func TestLimits_ofTheServiceWithoutTheBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("OTHER", "other.>")
	limited, others := new(crowd), new(crowd)
	done := make(chan struct{})
	close(done)
	count := func(h *crowd) Handler {
		return HandlerFunc(func(ctx context.Context, _ *Msg) error { return h.handle(ctx, done) })
	}
	r, _ := w.start(Config{Logger: quiet, Limits: sixOfTheService()},
		Route{Name: "a", Subjects: []string{"orders.>"}, Limits: []string{"gateway"}, Handler: count(limited)},
		Route{Name: "other", Subjects: []string{"other.>"}, Handler: count(others)})
	w.publish("orders.x", 3)
	w.eventually("it has a part", func() bool { return limited.done.Load() == 3 })
	// In the place of the bucket there is something else.
	if err := w.js.DeleteStream(t.Context(), "KV_RELAY_FLEET"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "THIEF", Subjects: []string{"$KV.RELAY_FLEET.>"}}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is said", func() bool {
		s := r.Status().Routes[0]
		err := r.Ready()
		return s.State != control.StateFlowing && strings.Contains(s.Why, "no part of limit gateway") && s.Since != nil && err != nil && strings.Contains(err.Error(), "gateway")
	})
	w.publish("orders.x", 3)
	w.publish("other.x", 3)
	w.eventually("the other route goes on", func() bool { return others.done.Load() == 3 })
	if n := limited.done.Load(); n != 3 {
		t.Errorf("%d were handled without a part", n-3)
	}
	if err := w.js.DeleteStream(t.Context(), "THIEF"); err != nil {
		t.Fatal(err)
	}
	w.eventually("the bucket is made anew, and all are handled", func() bool { return limited.done.Load() == 6 })
	w.eventually("it is ready again", func() bool { return r.Ready() == nil })
}

// A limit changes from each instance's own to one of the service and back, and nothing restarts for it: messages go on.
func TestLimits_scopeChangesLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := &crowd{hold: make(chan struct{})}
	r, _ := w.start(Config{Logger: quiet, Limits: map[string]Limit{"gateway": {Concurrency: 2}}},
		Route{Name: "a", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Limits: []string{"gateway"}, Handler: h})
	for i := range 20 {
		w.publish(fmt.Sprintf("orders.%d", i), 1)
	}
	w.eventually("two run", func() bool { return h.running() == 2 })
	change := func(l Limit, n int) {
		t.Helper()
		if _, err := r.Change(t.Context(), Change{Limits: map[string]Limit{"gateway": l}}); err != nil {
			t.Fatal(err)
		}
		w.eventually(fmt.Sprintf("%d run with scope %s", n, l.Scope), func() bool { return h.running() == n })
	}
	change(Limit{Concurrency: 4, Scope: ScopeService}, 4)
	change(Limit{Concurrency: 6, Scope: ScopeService}, 6)
	change(Limit{Concurrency: 8, Scope: "instance"}, 8)
	change(Limit{Concurrency: 9, Rate: Rate{Count: 1000, Per: time.Second}, Scope: ScopeService}, 9)
	close(h.hold)
	w.eventually("all are handled", func() bool { return h.done.Load() == 20 })
	if h.most() != 9 {
		t.Errorf("%d ran at once, 9 are allowed", h.most())
	}
}

func (a *crowd) most() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.max
}
