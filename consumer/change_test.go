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

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// handled counts, for each message, how often it was handled, and notes an attempt that is not the first.
type handled struct {
	mu    sync.Mutex
	times map[uint64]int
	again int
}

func (h *handled) Handle(_ context.Context, m *Msg) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.times == nil {
		h.times = make(map[uint64]int)
	}
	h.times[m.Sequence]++
	if m.Attempt != 1 {
		h.again++
	}
	return nil
}

func (h *handled) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.times)
}

// Routes come, go and change while ten thousand messages arrive: each is handled in its first attempt, and those of a route
// that does not change are handled once.
func TestChange_underLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const each = 2500
	names := []string{"steady", "changes", "comes", "ordered"}
	hs := make(map[string]*handled)
	route := func(name string) Route {
		rt := Route{Name: name, Subjects: []string{"orders." + name + ".*"}, Start: Start{Policy: "all"}, Handler: hs[name]}
		if name == "ordered" {
			rt.Order = "key"
		}
		if name != "steady" {
			rt.AckWait = 5 * time.Second // what a busy machine does not settle in time comes after that
		}
		return rt
	}
	for _, name := range names {
		hs[name] = new(handled)
	}
	r, stop := w.start(Config{Logger: quiet}, route("steady"), route("changes"), route("ordered"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	published := make(chan error, len(names))
	for _, name := range names {
		go func() {
			var err error
			for i := 0; i < each && err == nil; i++ {
				_, err = w.js.Publish(ctx, fmt.Sprintf("orders.%s.%d", name, i%50), []byte("{}"))
			}
			published <- err
		}()
	}
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for n, done := 0, 0; done < len(names) || n < 5; n++ {
		added, err := r.Change(ctx, Change{Add: []Route{route("comes")}})
		do("add", err)
		_, err = r.Update(ctx, route("changes"))
		do("update", err)
		_, err = r.Update(ctx, route("ordered"))
		do("update of an ordered route", err)
		left, err := r.Remove(ctx, "comes")
		do("remove", err)
		if left.Durable != "comes" || left.Stream != "ORDERS" || left.Backlog == nil && added.Waiting["comes"] == "" { // beside busy processes its durable may not be open yet
			t.Fatalf("what is left of it: %+v; waiting: %v", left, added.Waiting)
		}
		for len(published) > 0 {
			do("publish", <-published)
			done++
		}
	}
	do("add", r.Add(ctx, route("comes")))
	for _, name := range names {
		w.eventually("all messages of "+name+" are handled", func() bool { return hs[name].count() == each })
	}
	do("run", stop())
	for _, name := range names {
		if hs[name].again > 0 {
			t.Errorf("%s: %d attempts were not the first", name, hs[name].again)
		}
		if info := w.info("ORDERS", name); info.NumAckPending > 0 || info.NumPending > 0 {
			t.Errorf("%s: %d not settled, %d not delivered", name, info.NumAckPending, info.NumPending)
		}
	}
	for seq, n := range hs["steady"].times {
		if n != 1 {
			t.Fatalf("message %d of the route that did not change was handled %d times", seq, n)
		}
	}
}

// What cannot work is refused before anything has changed, with the route and what to do.
func TestChange_refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish("orders.old", 1)
	_, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "taken", AckPolicy: jetstream.AckAllPolicy})
	if err != nil {
		t.Fatal(err)
	}
	h := new(handled)
	r, _ := w.start(Config{}, Route{Name: "a", Subjects: []string{"orders.a"}, Start: Start{Policy: "all"}, Handler: h})
	route := func(name, subject string) Route {
		return Route{Name: name, Subjects: []string{subject}, Start: Start{Policy: "all"}, Handler: h}
	}
	with := func(rt Route, f func(*Route)) Route { f(&rt); return rt }
	for want, c := range map[string]Change{
		"route a: this instance already has a route of this name":  {Add: []Route{route("a", "orders.x")}},
		"route b: this instance has no route of this name: add it": {Update: []Route{route("b", "orders.b")}},
		"route c: is not there":                                    {Remove: []string{"c"}},
		"named twice":                                              {Update: []Route{route("a", "orders.a")}, Remove: []string{"a"}},
		"exactly one of Handler and Factory":                       {Add: []Route{{Name: "b", Subjects: []string{"orders.b"}}}},
		"concurrency: must be":                                     {Add: []Route{with(route("b", "orders.b"), func(rt *Route) { rt.Concurrency = -1 })}},
		`no stream holds subject "nowhere"`:                        {Add: []Route{route("b", "nowhere")}},
		`"orders.*" overlaps "orders.a" of route a`:                {Add: []Route{route("b", "orders.*")}},
		`"orders.b.*" overlaps "orders.b.>"`:                       {Add: []Route{route("b", "orders.b.>"), route("c", "orders.b.*")}},
		"say where it begins":                                      {Add: []Route{with(route("b", "orders.old"), func(rt *Route) { rt.Start = Start{} })}},
		"handler: it has no license": {Add: []Route{with(route("b", "orders.b"), func(rt *Route) {
			rt.Check = func(context.Context) error { return errors.New("it has no license") }
			rt.Handler, rt.Factory = nil, func(string) (Handler, error) { return h, nil }
		})}},
		"durable taken on stream ORDERS exists": {Add: []Route{route("taken", "orders.t")}},
	} {
		// A good one beside it is not made either.
		c.Add = append(c.Add, route("good", "orders.good"))
		if _, err := r.Change(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		} else if setup := (*SetupError)(nil); !errors.As(err, &setup) {
			t.Errorf("%s: %T", want, err)
		}
		if err := r.Check(t.Context(), c); err == nil {
			t.Errorf("%s: Check finds nothing", want)
		}
	}
	if all := r.engine.Routes.All(); len(all) != 1 {
		t.Errorf("%d routes", len(all))
	}
	for _, durable := range []string{"good", "b"} {
		if _, err := w.js.Consumer(t.Context(), "ORDERS", durable); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Errorf("durable %s: %v", durable, err)
		}
	}
	w.publish("orders.a", 1)
	w.eventually("the route works", func() bool { return h.count() == 1 && r.Ready() == nil })
}

// The routes of a change were made before it was judged, and their limits with them: status showed those of a change that was refused, or
// was only checked, until the end.
func TestChange_regressionARefusedOneLeftItsLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := new(handled)
	a := Route{Name: "a", Subjects: []string{"orders.a"}, Start: Start{Policy: "all"}, Limits: []string{"gateway"}, Handler: h}
	r, _ := w.start(Config{Limits: map[string]Limit{"gateway": {Concurrency: 7}}}, a)
	limits := map[string]Limit{"gateway": {Concurrency: 3}, "new": {Concurrency: 2}, "all": {Concurrency: 2, Scope: ScopeService}}
	b := Route{Name: "b", Subjects: []string{"orders.b"}, Start: Start{Policy: "all"}, Limits: []string{"new", "all", "gateway"}, Rate: Rate{Count: 5, Per: time.Second}, Handler: h}
	faster := a
	faster.Durable, faster.Rate = "other", Rate{Count: 9, Per: time.Second}
	names := func() (list []string) {
		for _, l := range r.Status().Limits {
			list = append(list, fmt.Sprintf("%s %d", l.Name, l.Concurrency))
		}
		return list
	}
	bad := Route{Name: "c", Subjects: []string{"nowhere"}, Start: Start{Policy: "all"}, Handler: h}
	overlaps := Route{Name: "c", Subjects: []string{"orders.*"}, Start: Start{Policy: "all"}, Handler: h}
	for _, c := range []Change{
		{Add: []Route{b, bad}, Limits: limits}, {Add: []Route{b, overlaps}, Limits: limits}, {Add: []Route{b, overlaps}, Update: []Route{faster}, Limits: limits},
	} {
		if _, err := r.Change(t.Context(), c); err == nil {
			t.Fatal("it was not refused")
		}
		if got := names(); !slices.Equal(got, []string{"gateway 7"}) {
			t.Errorf("after it was refused: %q", got)
		}
	}
	good := Change{Add: []Route{b}, Limits: limits}
	if err := r.Check(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"gateway 7"}) {
		t.Errorf("after it was checked: %q", got)
	}
	if _, err := r.Change(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"all 2", "gateway 3", "new 2", "rate of b 0"}) {
		t.Errorf("after it was made: %q", got)
	}
	w.publish("orders.b", 3)
	w.eventually("what its limits bound runs", func() bool { return h.count() == 3 })
}

// Routes of one durable begin and end together; what the one that goes had is the others', or stays for it.
func TestChange_sharedDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all, eu := new(handled), new(handled)
	wide := Route{Name: "all", Subjects: []string{"orders.>"}, Durable: "d", Start: Start{Policy: "all"}, Handler: all}
	narrow := Route{Name: "eu", Subjects: []string{"orders.eu"}, Durable: "d", Start: Start{Policy: "all"}, Handler: eu}
	r, _ := w.start(Config{}, wide, narrow)
	w.publish("orders.eu", 3)
	w.eventually("the narrow route has its own", func() bool { return eu.count() == 3 })
	done, err := r.Change(t.Context(), Change{Remove: []string{"eu"}})
	if err != nil || len(done.Restarted) != 1 || done.Restarted[0] != "all" {
		t.Fatalf("%+v %v", done, err)
	}
	w.publish("orders.eu", 2)
	w.eventually("the wide route gets them", func() bool { return all.count() == 2 })
	if done, err = r.Change(t.Context(), Change{Add: []Route{narrow}}); err != nil || len(done.Restarted) != 1 {
		t.Fatalf("%+v %v", done, err)
	}
	w.publish("orders.eu", 1)
	w.eventually("the narrow route has it again", func() bool { return eu.count() == 4 })
}

// An operator's order holds for the route that takes the place of another; a handler that does not end within the drain is interrupted
// and spends no attempt; others wait for neither.
func TestChange_orderHoldsAndDrainEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bucket, err := orders.Open(t.Context(), w.js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	slow, other := new(handled), new(handled)
	started, cancelled := make(chan struct{}, 1), atomic.Int64{}
	hang := HandlerFunc(func(ctx context.Context, _ *Msg) error {
		started <- struct{}{}
		<-ctx.Done()
		cancelled.Add(1)
		return ctx.Err()
	})
	route := Route{Name: "slow", Subjects: []string{"orders.slow"}, Start: Start{Policy: "all"}, Handler: hang}
	r, _ := w.start(Config{Drain: 300 * time.Millisecond}, route, Route{Name: "other", Subjects: []string{"orders.other"}, Start: Start{Policy: "all"}, Handler: other})
	w.publish("orders.slow", 1)
	<-started
	if _, err := bucket.Give(t.Context(), orders.Order{Route: "slow", State: orders.Paused, Why: "maintenance"}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is paused", func() bool { return r.engine.Routes.All()[0].Group.Status().Paused })
	route.Handler = slow
	done, err := r.Update(t.Context(), route)
	if err != nil || done.Interrupted != 1 || cancelled.Load() != 1 {
		t.Fatalf("%+v, %d cancelled, %v", done, cancelled.Load(), err)
	}
	if !r.engine.Routes.All()[0].Group.Status().Paused {
		t.Error("it is not paused any more")
	}
	w.publish("orders.other", 1)
	w.eventually("others go on", func() bool { return other.count() == 1 })
	if n := slow.count(); n != 0 {
		t.Errorf("%d messages started while the route is paused", n)
	}
	if _, err := bucket.Give(t.Context(), orders.Order{Route: "slow", State: orders.Running}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the message comes", func() bool { return slow.count() == 1 })
	if slow.again != 0 {
		t.Error("the interrupted attempt was spent")
	}
}

// What the route had sent away for an hour was forgotten with it: resumed, its key waited for the rest of that.
func TestChange_regressionWhatASuspendedKeySentAwayComesToTheSuccessor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	route := countingRoute(l)
	r, _ := w.start(Config{}, route)
	away := func() int { return r.engine.Routes.All()[0].Group.Status().Aside }
	w.order(orders.Order{Route: "billing", Key: []byte("orders.us"), State: orders.Paused}, r)
	w.publish("orders.us", 5)
	w.eventually("they are sent away", func() bool { return away() == 5 })
	if _, err := r.Update(t.Context(), route); err != nil {
		t.Fatal(err)
	}
	w.eventually("the successor has sent them away", func() bool { return away() == 5 })
	w.order(orders.Order{Route: "billing", Key: []byte("orders.us"), State: orders.Running}, r)
	w.settled("ORDERS", "billing")
	if l.len() != 5 {
		t.Errorf("%d messages handled, want 5", l.len())
	}
}

// What was dead-lettered or parked after a reload that began the route anew was not counted, and the ledger missed it.
func TestChange_regressionWhatIsSettledAfterwardsIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		if m.Subject == "orders.bad" {
			return Dead(errors.New("bad"))
		}
		return RetryIn(time.Hour, errors.New("later")) // it is parked
	})}
	r, _ := w.start(Config{Logger: quiet}, route)
	count := func() (dead, parked int) {
		c := r.engine.Routes.All()[0].Count
		return int(c.Stored()), int(c.Parked.Load())
	}
	for n := 1; n <= 2; n++ {
		w.publish("orders.bad", 3)
		w.publish("orders.later", 2)
		w.eventually("what was settled is counted", func() bool { dead, parked := count(); return dead == 3*n && parked == 2*n })
		route.AckWait += 31 * time.Second
		if done, err := r.Update(t.Context(), route); err != nil || len(done.Live) > 0 {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	if b := w.audit(10 * time.Second); b.Verdict != audit.Balanced || b.Total.Dead != 6 {
		t.Errorf("the ledger says %+v", b)
	}
}

// A relay that ends in the middle of a change ends; after that, and before it runs, nothing can change.
func TestChange_whileRelayEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	started, let := make(chan struct{}), make(chan struct{})
	route := Route{Name: "a", Subjects: []string{"orders.a"}, Start: Start{Policy: "all"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		close(started)
		<-let
		return nil
	})}
	r, stop := w.start(Config{}, route, Route{Name: "b", Subjects: []string{"orders.b"}, Handler: new(handled)})
	w.publish("orders.a", 1)
	<-started
	changed := make(chan error, 1)
	route.Subjects = []string{"orders.a", "orders.a.>"} // with which it begins anew
	go func() {
		_, err := r.Update(context.Background(), route)
		changed <- err
	}()
	w.eventually("the route waits for its former self", func() bool { return r.Status().Routes[0].State == control.StateStarting })
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	w.eventually("relay drains", func() bool { return r.Ready() != nil && strings.Contains(r.Ready().Error(), "draining") })
	close(let)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := <-changed; err != nil {
		t.Error(err)
	}
	if info := w.info("ORDERS", "a"); info.NumAckPending > 0 {
		t.Error("the message was not settled")
	}
	if err := r.Add(t.Context(), route); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
	fresh, err := New(w.s.Conn(t), Config{}, route)
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.Add(t.Context(), route); !errors.Is(err, ErrNotRunning) {
		t.Errorf("before it runs: %v", err)
	}
}
