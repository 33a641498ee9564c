package consumer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/control"
)

// crowd counts how many of its handlers run at once, and holds them until they are let go.
type crowd struct {
	mu       sync.Mutex
	now, max int
	done     atomic.Int64
	hold     chan struct{} // nil: they return by themselves
}

func (a *crowd) Handle(ctx context.Context, _ *Msg) error {
	may := a.hold
	if may == nil {
		may = make(chan struct{})
		close(may)
	}
	return a.handle(ctx, may)
}

// handle counts one more, until it may end.
func (a *crowd) handle(ctx context.Context, may <-chan struct{}) error {
	a.mu.Lock()
	a.now++
	a.max = max(a.max, a.now)
	a.mu.Unlock()
	select {
	case <-may:
	case <-ctx.Done():
	}
	a.mu.Lock()
	a.now--
	a.mu.Unlock()
	a.done.Add(1)
	return nil
}

func (a *crowd) running() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// Two routes share a limit of three: as many run and no more, status and metrics say who waits for what and who has it, a larger
// limit counts at once, and in the end all is handled in the first attempt.
func TestLimits_ofTwoRoutesAreSeenAndChangeLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish("orders.a.x", 20)
	w.publish("orders.b.x", 20)
	h := &crowd{hold: make(chan struct{})}
	route := func(name string) Route {
		return Route{Name: name, Subjects: []string{"orders." + name + ".*"}, Start: Start{Policy: "all"}, Limits: []string{"gateway"}, Handler: h}
	}
	r, stop := w.start(Config{Logger: quiet, Limits: map[string]Limit{"gateway": {Concurrency: 3}}}, route("a"), route("b"))
	w.eventually("three run, and both routes are limited", func() bool {
		s := r.Status()
		return h.running() == 3 && s.Routes[0].State == control.StateLimited && s.Routes[1].State == control.StateLimited
	})
	s := r.Status()
	if why := s.Routes[0].Why; !strings.Contains(why, "limit gateway: 3 of 3 run (") || s.Routes[0].Since == nil {
		t.Errorf("why: %q since %v", why, s.Routes[0].Since)
	}
	if l := s.Limits; len(l) != 1 || l[0].Used != 3 || l[0].Concurrency != 3 || len(l[0].Waiting) != 1 || len(l[0].Waiting[0].Routes) == 0 {
		t.Errorf("the limit in the status: %+v", l)
	}
	m := gathered(t, r)
	if m["relay_limit_running{gateway,a}"]+m["relay_limit_running{gateway,b}"] != 3 || m["relay_limit_waiting_messages{gateway,a}"] == 0 || m["relay_route_up{a}"] != 1 {
		t.Errorf("metrics of the limit: %v, %v run; %v wait; up %v", m["relay_limit_running{gateway,a}"], m["relay_limit_running{gateway,b}"], m["relay_limit_waiting_messages{gateway,a}"], m["relay_route_up{a}"])
	}
	if _, err := r.Change(t.Context(), Change{Limits: map[string]Limit{"other": {Concurrency: 3}}}); err == nil || !strings.Contains(err.Error(), `limit "gateway" is not defined`) {
		t.Errorf("a limit that routes name was taken away: %v", err)
	}
	if _, err := r.Change(t.Context(), Change{Limits: map[string]Limit{"gateway": {Concurrency: 5}}}); err != nil {
		t.Fatal(err)
	}
	w.eventually("five run", func() bool { return h.running() == 5 })
	close(h.hold)
	w.eventually("all are handled", func() bool { return h.done.Load() == 40 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if h.max != 5 {
		t.Errorf("%d ran at once, 5 were allowed", h.max)
	}
}

// A rate of a route is kept over messages of many keys.
func TestLimits_rateOfARoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 30 {
		w.publish(fmt.Sprintf("orders.%d.x", i), 1)
	}
	h := new(crowd)
	r, stop := w.start(Config{Logger: quiet}, Route{
		Name: "a", Subjects: []string{"orders.*.*"}, Start: Start{Policy: "all"}, Rate: Rate{Count: 20, Per: time.Second}, Burst: 5, Handler: h,
	})
	began := time.Now()
	w.eventually("all are handled", func() bool { return h.done.Load() == 30 })
	if took := time.Since(began); took < 800*time.Millisecond { // 25 after the burst, 50 ms each; relay began before began
		t.Errorf("30 in %v", took)
	}
	if l := r.Status().Limits; len(l) != 1 || l[0].Name != "rate of a" || l[0].Rate != 20 {
		t.Errorf("the rate in the status: %+v", l)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
