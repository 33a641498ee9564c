package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/supervisor"
)

// worker is a handler whose settings can differ.
type worker struct {
	handle                    func(ctx context.Context, m *Msg) error
	startErr                  error
	started, stopped, handled atomic.Int64
	busy, most                atomic.Int64
}

func (w *worker) Start(context.Context) error { w.started.Add(1); return w.startErr }
func (w *worker) Stop(context.Context) error  { w.stopped.Add(1); return nil }
func (w *worker) Handle(ctx context.Context, m *Msg) error {
	n := w.busy.Add(1)
	defer w.busy.Add(-1)
	for old := w.most.Load(); n > old && !w.most.CompareAndSwap(old, n); old = w.most.Load() {
	}
	defer w.handled.Add(1)
	if w.stopped.Load() > 0 {
		return Dead(errors.New("handled after Stop"))
	}
	if w.handle == nil {
		return nil
	}
	return w.handle(ctx, m)
}

func hangs(ctx context.Context, _ *Msg) error { <-ctx.Done(); return ctx.Err() }

func routeFor(h Handler) Route {
	return Route{Name: "a", Subjects: []string{"orders.a.*"}, Start: StartAll, Handler: h, Concurrency: 8}
}

// changeLive changes a route and fails unless that was in place.
func changeLive(t *testing.T, r *Relay, rt Route) {
	t.Helper()
	done, err := r.Update(t.Context(), rt)
	if err != nil || !slices.Equal(done.Live, []string{rt.Name}) || len(done.Restarted) > 0 || done.Interrupted > 0 {
		t.Fatalf("%+v %v", done, err)
	}
}

func TestChange_aHandlerThatHangsDoesNotKeepItsSuccessorWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, next := &worker{handle: hangs}, &worker{}
	r, stop := w.start(Config{Logger: quiet, Drain: 5 * time.Second}, routeFor(old))
	for i := range 4 {
		w.publish(fmt.Sprintf("orders.a.%d", i), 1)
	}
	w.eventually("four hang", func() bool { return old.busy.Load() == 4 })
	created := w.info("ORDERS", "a").Created
	began := time.Now()
	changeLive(t, r, routeFor(next))
	w.publish("orders.a.0", 20)
	w.publish("orders.a.new", 20)
	w.eventually("the new ones are handled", func() bool { return next.handled.Load() == 40 })
	if took := time.Since(began); took > 3*time.Second { // less than the drain
		t.Errorf("the last of 40 messages was handled %v after the change began", took)
	}
	t.Logf("40 messages handled within %v", time.Since(began))
	w.eventually("only those of before run", func() bool { // the last one was counted before it returned
		s := r.Status().Routes[0]
		return s.Running == 4 && s.Former == 4 && s.State == control.StateFlowing
	})
	if old.stopped.Load() > 0 || next.started.Load() != 1 {
		t.Errorf("stopped %d, started %d", old.stopped.Load(), next.started.Load())
	}
	w.eventually("those that hang are interrupted after the drain", func() bool { return old.busy.Load() == 0 })
	w.eventually("their messages come to the successor", func() bool { return next.handled.Load() == 44 })
	w.eventually("the old one is stopped", func() bool { return old.stopped.Load() == 1 })
	if !w.info("ORDERS", "a").Created.Equal(created) {
		t.Error("the durable was made anew")
	}
	if err := stop(); err != nil || next.stopped.Load() != 1 {
		t.Errorf("%v, stopped %d times", err, next.stopped.Load())
	}
}

func TestChange_concurrencyCountsUpAndDownUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := &worker{handle: func(context.Context, *Msg) error { time.Sleep(time.Millisecond); return nil }}
	route := routeFor(h)
	r, _ := w.start(Config{Logger: quiet}, route)
	sent := 0
	for _, n := range []int{16, 2, 12, 1, 8} {
		route.Concurrency = n
		changeLive(t, r, route)
		w.eventually("no more run than may", func() bool { return h.busy.Load() <= int64(n) })
		h.most.Store(0)
		for i := range 40 {
			w.publish(fmt.Sprintf("orders.a.%d", i), 10)
		}
		sent += 400
		w.eventually("they are handled", func() bool { return h.handled.Load() == int64(sent) })
		if most := h.most.Load(); most > int64(n) || n > 1 && most < 2 {
			t.Errorf("%d ran at once, concurrency is %d", most, n)
		}
	}
	if h.started.Load() != 1 || h.stopped.Load() != 0 {
		t.Errorf("the same handler was started %d times and stopped %d times", h.started.Load(), h.stopped.Load())
	}
}

func TestChange_oldAndNewHandlerDoNotOverlapOnAnOrderedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var order []uint64
	let := make(chan struct{})
	old := &worker{handle: func(_ context.Context, m *Msg) error {
		<-let
		mu.Lock()
		defer mu.Unlock()
		order = append(order, m.Sequence)
		return nil
	}}
	next := &worker{handle: func(_ context.Context, m *Msg) error {
		mu.Lock()
		defer mu.Unlock()
		if m.Subject == "orders.a.1" {
			if old.busy.Load() > 0 {
				t.Errorf("message %d starts beside the old handler", m.Sequence)
			}
			order = append(order, m.Sequence)
		}
		return nil
	}}
	route := routeFor(old)
	route.Order = supervisor.OrderKey
	r, _ := w.start(Config{Logger: quiet}, route)
	w.publish("orders.a.1", 5)
	w.eventually("the head runs", func() bool { return old.busy.Load() == 1 })
	route.Handler = next
	changeLive(t, r, route)
	w.publish("orders.a.2", 3)
	w.eventually("another key goes on", func() bool { return next.handled.Load() == 3 })
	close(let)
	w.eventually("the key goes on", func() bool { return next.handled.Load() == 7 })
	if !slices.IsSorted(order) || len(order) != 5 {
		t.Errorf("order %v", order)
	}
}

func TestChange_settingsCountFromTheNextStartWithoutOpeningTheDurableAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := &worker{handle: hangs}
	route := routeFor(h)
	route.Timeout, route.Retry.MaxAttempts = time.Minute, 5
	r, _ := w.start(Config{Logger: quiet}, route)
	look := w.s.Conn(t)
	all, err := look.SubscribeSync("$JS.API.CONSUMER.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := look.Flush(); err != nil {
		t.Fatal(err)
	}
	route.Timeout, route.Retry.MaxAttempts, route.Stash.Messages = 100*time.Millisecond, 1, 7
	route.Supervisor.TripAfter, route.AckWait = new(1), 30*time.Second
	changeLive(t, r, route)
	w.publish("orders.a.1", 1)
	w.eventually("the new timeout and the new attempts count", func() bool { return r.Status().Routes[0].Dead == 1 })
	for {
		m, err := all.NextMsg(10 * time.Millisecond)
		if err != nil {
			break
		}
		if strings.HasPrefix(m.Subject, "$JS.API.CONSUMER.CREATE.ORDERS.") || strings.HasPrefix(m.Subject, "$JS.API.CONSUMER.DURABLE.CREATE.ORDERS.") {
			t.Errorf("request on %s", m.Subject)
		}
	}
	if n := w.info("ORDERS", "a").NumRedelivered; n > 0 {
		t.Errorf("%d were delivered again", n)
	}
}

func TestChange_inPlaceLeavesOthersOnTheDurableAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wide, narrow, next := &worker{}, &worker{handle: hangs}, &worker{}
	other := Route{Name: "all", Subjects: []string{"orders.>"}, Durable: "d", Start: StartAll, Handler: wide}
	route := Route{Name: "eu", Subjects: []string{"orders.eu"}, Durable: "d", Start: StartAll, Handler: narrow}
	r, _ := w.start(Config{Logger: quiet, Drain: time.Second}, other, route)
	unit := r.engine.Routes.All()[0].Place.Load()
	w.publish("orders.eu", 1)
	w.eventually("it hangs", func() bool { return narrow.busy.Load() == 1 })
	route.Handler = next
	changeLive(t, r, route)
	w.publish("orders.eu", 1)
	w.publish("orders.us", 3)
	w.eventually("both work", func() bool { return next.handled.Load() >= 1 && wide.handled.Load() == 3 })
	if r.engine.Routes.All()[0].Place.Load() != unit || wide.stopped.Load() > 0 {
		t.Error("the other route was touched")
	}
}

func TestChange_refusedLeavesNothingBehindOfWhatWasToChangeInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, good, bad := &worker{}, &worker{}, &worker{startErr: errors.New("no license")}
	a, b := routeFor(old), Route{Name: "b", Subjects: []string{"orders.b"}, Start: StartAll, Handler: &worker{}}
	r, _ := w.start(Config{Logger: quiet, Limits: map[string]Limit{"l": {Concurrency: 1}}}, a, b)
	a.Handler, a.Concurrency, b.Handler = good, 3, bad
	limited := Route{Name: "c", Subjects: []string{"orders.c"}, Start: StartAll, Handler: &worker{}, Limits: []string{"l"}, Rate: Rate{Count: 10, Per: time.Second}}
	if done, err := r.Change(t.Context(), Change{Update: []Route{a, b}, Add: []Route{limited}}); err == nil {
		t.Fatalf("%+v", done)
	}
	if s, e := good.started.Load(), good.stopped.Load(); s != e {
		t.Errorf("started %d times, stopped %d times", s, e)
	}
	for _, l := range r.Status().Limits {
		if l.Name != "l" || l.Used > 0 || len(l.Holders) > 0 {
			t.Errorf("limit left: %+v", l)
		}
	}
	if now := r.engine.Routes.All()[0].Now(); now.Concurrency != 8 {
		t.Errorf("concurrency is %d", now.Concurrency)
	}
	w.publish("orders.a.1", 1)
	w.eventually("the old one goes on", func() bool { return old.handled.Load() == 1 })
}

func TestChange_aHundredTimesUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	times := make(map[uint64]int)
	again := 0
	fresh := func() *worker {
		return &worker{handle: func(_ context.Context, m *Msg) error {
			time.Sleep(200 * time.Microsecond)
			mu.Lock()
			defer mu.Unlock()
			times[m.Sequence]++
			if m.Attempt != 1 {
				again++
			}
			return nil
		}}
	}
	h := fresh()
	workers := []*worker{h}
	r, stop := w.start(Config{Logger: quiet}, routeFor(h))
	const all = 3000
	published := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < all && err == nil; i++ {
			_, err = w.js.Publish(context.Background(), fmt.Sprintf("orders.a.%d", i%20), []byte("{}"))
		}
		published <- err
	}()
	for i := range 100 {
		h := fresh()
		workers = append(workers, h)
		route := routeFor(h)
		route.Concurrency, route.Stash.Messages = 1+i%16, 10+i
		changeLive(t, r, route)
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(times) }
	w.eventually("all are handled", func() bool { return count() == all })
	w.settled("ORDERS", "a")
	if err := stop(); err != nil {
		t.Error(err)
	}
	for seq, n := range times {
		if n != 1 {
			t.Errorf("message %d was handled %d times", seq, n)
		}
	}
	if again > 0 {
		t.Errorf("%d attempts were not the first", again)
	}
	for i, h := range workers {
		if h.started.Load() > 1 || h.stopped.Load() != h.started.Load() {
			t.Errorf("worker %d was started %d times and stopped %d times", i, h.started.Load(), h.stopped.Load())
		}
	}
}

func TestChange_aRouteThatRestartsSaysWhatStillRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := &worker{handle: hangs}
	r, _ := w.start(Config{Logger: quiet, Drain: time.Second}, routeFor(h))
	w.publish("orders.a.1", 2)
	w.eventually("they hang", func() bool { return h.busy.Load() == 2 })
	route := routeFor(&worker{})
	route.Subjects = []string{"orders.a.>"}
	changed := make(chan error, 1)
	go func() {
		_, err := r.Update(t.Context(), route)
		changed <- err
	}()
	w.eventually("status says so", func() bool {
		s := r.Status().Routes[0]
		return s.State == control.StateStarting && s.Running == 2 && s.Former == 2
	})
	if err := <-changed; err != nil {
		t.Error(err)
	}
}
