package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/supervisor"
)

// An endpoint breaks in the middle of its messages and answers everything with dead. While it is broken an operator tries one
// message, and a neighbour on the same durable changes, which begins the route anew; before, that made it flow. Then it is mended,
// and nobody says so. That costs 50 dead letters; all other messages are handled.
func TestRelay_aBrokenEndpointCostsFiftyDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var broken atomic.Bool
	var mu sync.Mutex
	seen := map[string]bool{}
	route := Route{
		Name: "hooks", Subjects: []string{"orders.>"}, Durable: "d",
		Supervisor: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(50)}, Restart: supervisor.Backoff{Max: 200 * time.Millisecond}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if broken.Load() {
				return Dead(errors.New("HTTP 400 Bad Request"))
			}
			mu.Lock()
			seen[m.Subject] = true
			mu.Unlock()
			return nil
		}),
	}
	neighbour := Route{Name: "eu", Subjects: []string{"orders.eu"}, Durable: "d", Handler: new(handled)}
	r, _ := w.start(Config{Logger: quiet}, route, neighbour)
	const half = 200
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	publish := func(from int) {
		for i := range half {
			w.publish(fmt.Sprintf("orders.%d", from+i), 1)
		}
	}
	publish(0)
	w.eventually("the first half is handled", func() bool { return count() == half })
	broken.Store(true)
	publish(half)
	state := func() RouteStatus {
		for _, s := range r.Status().Routes {
			if s.Name == "hooks" {
				return s
			}
		}
		return RouteStatus{}
	}
	const before = 45 // the share of dead_trip
	w.eventually("it is suspended", func() bool { s := state(); return s.State == control.StateSuspended && s.Dead == before })
	since := *state().Since
	if list, _, err := control.Wake(t.Context(), w.nc, "relay", orders.Order{Route: "hooks", Trial: true}); err != nil || len(list) != 1 || list[0].State != control.StateSuspended {
		t.Fatalf("%+v %v", list, err)
	}
	neighbour.Interest.Timeout = time.Second // with which it begins anew
	if done, err := r.Update(t.Context(), neighbour); err != nil || len(done.Restarted) != 1 {
		t.Fatalf("%+v %v", done, err)
	}
	asked := func() uint64 {
		return r.engine.Routes.All()[0].Group.Status().Counts.Started + r.engine.Routes.All()[1].Group.Status().Counts.Started
	}
	w.eventually("it asks", func() bool { return asked() > 20 })
	w.eventually("its durables are open again", func() bool { return state().State != control.StateStarting }) // beside busy processes that takes a while
	if s := state(); s.State != control.StateSuspended || !s.Since.Equal(since) || s.Dead != before {
		t.Errorf("after a neighbour changed: %s since %v (%v), %d dead letters more: %s", s.State, s.Since, since, s.Dead-before, s.Why)
	}
	broken.Store(false)
	// A question that read broken before may be judged after another one succeeded: it is believed then, as the route flows.
	w.eventually("all others are handled", func() bool { return count()+len(w.deadLetters()) == 2*half })
	if s := state(); s.State != control.StateFlowing || s.Dead > 50 || len(w.deadLetters()) != int(s.Dead) {
		t.Errorf("%s, %d dead letters more: %s", s.State, s.Dead-before, s.Why)
	}
	w.settled("ORDERS", "d")
}
