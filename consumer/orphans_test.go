package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/supervisor"
)

// A route was renamed, and what it had parked was consumed by nobody: nothing counted it, nothing said so.
func TestRelay_regressionWhatARenamedRouteLeavesIsNamedAndCanBeMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var failed, handled atomic.Int64
	const n = 30
	_, stop := w.start(Config{Logger: quiet}, Route{ // its retries are not due before they are moved
		Name: "billing", Subjects: []string{"orders.>"}, Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
		Retry:   Retry{ParkAfter: time.Millisecond, Backoff: supervisor.Backoff{Min: 10 * time.Second, Max: 10 * time.Second}},
		Handler: HandlerFunc(func(context.Context, *Msg) error { failed.Add(1); return errors.New("not yet") }),
	})
	w.publish("orders.eu", n)
	w.eventually("all are parked", func() bool { return w.kept("relay.park.billing.>") == n })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu", 3)
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "invoicing", Subjects: []string{"orders.>"}, Start: Start{Policy: "new"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if m.Sequence <= n && m.Attempt < 2 {
				t.Errorf("attempt %d: the attempts before are forgotten", m.Attempt)
			}
			handled.Add(1)
			return nil
		}),
	})
	w.eventually("status names the retries and the durable", func() bool {
		text := strings.Join(r.Status().Trouble, "\n")
		return strings.Contains(text, "30 messages of route billing from stream ORDERS") && strings.Contains(text, "durable billing on stream ORDERS of route billing: 3 messages wait")
	})
	list, err := orphansOf(t.Context(), w.js, "", []Route{{Name: "invoicing"}})
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	if list, err := orphansOf(t.Context(), w.js, "", []Route{{Name: "invoicing"}, {Name: "billing"}}); err != nil || len(list) != 0 {
		t.Errorf("with the old route: %v, %v", list, err)
	}
	w.publish("orders.eu", 2) // both durables have them: the new one's they are
	w.eventually("the new route has them", func() bool { return handled.Load() == 2 })
	if _, err := (orphans.Move{From: "billing", To: "nobody"}).Do(t.Context(), w.js, list); err == nil {
		t.Error("moved to a route that was never started")
	}
	// Interrupted in the middle, and taken up again.
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	move := orphans.Move{From: "billing", To: "invoicing", Moved: func() {
		if told++; told == 10 {
			cancel()
		}
	}}
	some, err := move.Do(ctx, w.js, list)
	if err == nil || some.Sum() != 10 {
		t.Errorf("%+v moved, %v", some, err)
	}
	rest, err := move.Do(t.Context(), w.js, list)
	if err != nil || some.Sum()+rest.Sum() != n+3 || rest.Durable != 3 {
		t.Errorf("%+v and %+v moved, %v", some, rest, err)
	}
	w.eventually("they are handled", func() bool { return handled.Load() == n+5 })
	w.eventually("nothing is left", func() bool { return w.kept("relay.>") == 0 })
	if _, err := w.js.Consumer(t.Context(), "ORDERS", "billing"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("the old durable: %v", err)
	}
}

// What came before anybody wanted it is handled by the route that wants it later: perhaps twice, as the durable passes it, too, once it has a filter.
func TestRelay_messagesThatNoRouteWantedGoToTheRouteThatComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var orders atomic.Int64
	var mu sync.Mutex
	payments := make(map[uint64]bool) // by sequence
	paid := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(payments) == n
		}
	}
	billing := Route{Name: "billing", Durable: "shared", Subjects: []string{"orders.>"}, Handler: w.only("orders.", &orders), Start: Start{Policy: "all"}}
	paying := Route{Name: "paying", Durable: "shared", Subjects: []string{"payments.>"}, Start: Start{Policy: "all"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		if !strings.HasPrefix(m.Subject, "payments.") {
			t.Errorf("paying got %s", m.Subject)
		}
		mu.Lock()
		defer mu.Unlock()
		payments[m.Sequence] = true
		return nil
	})}
	r, stop := w.start(Config{Logger: quiet}, billing)
	began := time.Now()
	w.publish("orders.eu", 1)
	w.settled("ORDERS", "shared")
	// The durable is looked at after its first delivery, and would get a filter if the stream held more by then: nothing that nobody wants would come.
	w.eventually("the durable was looked at", func() bool { l := r.engine.Running.Sources()[0].Looked(); return l != nil && l.At.After(began) })
	w.holds("ORDERS", "orders.>", "payments.>")
	w.publish("payments.eu", 20)
	// The durable is looked at again within ten seconds, and gets a filter then: what is published after that is not delivered. Message 1 is of orders.
	w.eventually("those that came are kept", func() bool {
		c, err := w.js.Consumer(t.Context(), "ORDERS", "shared")
		if err != nil {
			return false
		}
		info, kept := c.CachedInfo(), w.kept("relay.due.~.ORDERS.>")
		return kept == 20 || info.Config.FilterSubject != "" && info.NumAckPending == 0 && kept == int(info.Delivered.Stream)-1
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.start(Config{Logger: quiet}, billing, paying)
	w.eventually("they are handled", paid(20))
	w.publish("payments.eu", 5)
	w.eventually("as are new ones", paid(25))
	w.eventually("nothing is left", func() bool { return w.kept("relay.>") == 0 })
}

// A durable that was deleted and is made anew with start: all had everything handled again, and nobody was warned.
func TestRelay_regressionADurableMadeAnewWithStartAllSaysWhatComesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var handled atomic.Int64
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Handler: w.only("orders.", &handled)}
	_, stop := w.start(Config{Logger: quiet}, route)
	w.publish("orders.eu", 40)
	w.settled("ORDERS", "billing")
	w.eventually("all are handled", func() bool { return handled.Load() == 40 && w.info("ORDERS", "billing").AckFloor.Stream == 40 })
	if err := stop(); err != nil { // which notes it
		t.Fatal(err)
	}
	w.publish("orders.eu", 2)
	if err := w.js.DeleteConsumer(t.Context(), "ORDERS", "billing"); err != nil {
		t.Fatal(err)
	}
	lines := new(logLines)
	// What is said comes before anything is handled: nothing is, while its handler waits.
	hold := make(chan struct{})
	waits := route
	waits.Handler = HandlerFunc(func(ctx context.Context, m *Msg) error {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
	r, stop := w.start(Config{Logger: slog.New(slog.NewTextHandler(lines, nil)), Drain: 100 * time.Millisecond}, waits)
	if told := r.Status().Routes[0].Again; len(told) != 1 || told[0].Messages != 40 || !told[0].Deleted {
		t.Errorf("status says %+v", told)
	}
	if lines.count("up to 40 messages were handled before durable billing was deleted") != 1 || lines.count("start: {seq: 41}") != 1 {
		t.Errorf("the log does not say it: %s", lines.text.String())
	}
	// The advice is followed.
	_ = stop()
	if err := w.js.DeleteConsumer(t.Context(), "ORDERS", "billing"); err != nil {
		t.Fatal(err)
	}
	route.Start = Start{Policy: "seq", Seq: 41}
	w.start(Config{Logger: quiet}, route)
	w.eventually("the two that were not are handled", func() bool { return handled.Load() == 42 })
	w.settled("ORDERS", "billing")
	if n := handled.Load(); n != 42 {
		t.Errorf("%d were handled, want each once: 42", n)
	}
}

// A route whose stream never holds its subjects ran as flowing.
func TestRelay_regressionARouteWhoseStreamHoldsNoneOfItsSubjectsSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Stream: "ORDERS", Subjects: []string{"invoices.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	if why := r.Status().Routes[0].Why; !strings.Contains(why, "ORDERS holds none of its subjects") {
		t.Errorf("status says %q", why)
	}
	w.holds("ORDERS", "orders.>", "invoices.>")
	w.eventually("it is over", func() bool { return r.Status().Routes[0].Why == "" })
}

// A route with instances: one was told of as an orphan by an instance that stands by, with the advice to remove its durable.
func TestRelay_regressionNoAdviceNamesADurableThatAnInstanceUses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	none := HandlerFunc(func(context.Context, *Msg) error { return nil })
	single := Route{Name: "billing", Subjects: []string{"orders.eu"}, Start: Start{Policy: "all"}, Instances: InstancesOne, Handler: none}
	other := Route{Name: "shipping", Subjects: []string{"orders.us"}, Start: Start{Policy: "all"}, Handler: none}
	all := map[string]*Relay{}
	for _, name := range []string{"a", "b"} {
		all[name], _ = w.start(Config{Logger: quiet, Instance: name}, single, other)
	}
	all["c"], _ = w.start(Config{Logger: quiet, Instance: "c"}, other) // as in a rolling change
	w.publish("orders.eu", 3)
	look := func(when string) {
		t.Helper()
		for name, r := range all {
			r.engine.Orphans.Find(t.Context())
			for _, o := range r.engine.Orphans.Found() {
				t.Errorf("%s: %s says: %s", when, name, o)
			}
		}
	}
	w.eventually("one has it", func() bool {
		return w.info("ORDERS", "billing").NumWaiting > 0 && w.info("ORDERS", "billing").AckFloor.Stream == 3
	})
	look("while it pulls")
	if err := all["a"].Pause(t.Context(), "billing", ""); err != nil {
		t.Fatal(err)
	}
	if err := all["a"].Pause(t.Context(), "shipping", ""); err != nil {
		t.Fatal(err)
	}
	w.eventually("nobody pulls", func() bool {
		return w.info("ORDERS", "billing").NumWaiting == 0 && w.info("ORDERS", "shipping").NumWaiting == 0
	})
	look("while it is paused")
}

// What relay advises for a durable that no route uses loses nothing, also on a stream whose messages go when all durables have had them, and on one that
// lets each message to one durable only.
func TestOrphans_regressionTheAdviceForADurableLosesNothing(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]jetstream.RetentionPolicy{"limits": jetstream.LimitsPolicy, "interest": jetstream.InterestPolicy, "work queue": jetstream.WorkQueuePolicy} {
		for _, begin := range []bool{false, true} {
			if begin && retention == jetstream.WorkQueuePolicy {
				continue // it is not advised
			}
			t.Run(fmt.Sprintf("%s, begin anew %v", name, begin), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}, Retention: retention}); err != nil {
					t.Fatal(err)
				}
				var handled atomic.Int64
				counts := w.only("jobs.", &handled)
				old := Route{Name: "old", Subjects: []string{"jobs.>"}, Start: Start{Policy: "all"}, Handler: counts}
				_, stop := w.start(Config{Logger: quiet}, old)
				w.publish("jobs.a", 5)
				w.eventually("five are handled", func() bool { return handled.Load() == 5 && w.info("JOBS", "old").AckFloor.Consumer == 5 })
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				w.publish("jobs.a", 5)
				list, err := orphansOf(t.Context(), w.js, "", nil)
				if err != nil || len(list) != 1 || list[0].Kind != orphans.Durable {
					t.Fatalf("%v, %v", list, err)
				}
				begins := strings.Contains(list[0].Next, "nats consumer rm")
				if begins == (retention == jetstream.WorkQueuePolicy) {
					t.Fatalf("the advice is %q", list[0].Next)
				}
				route := Route{Name: "next", Subjects: []string{"jobs.>"}, Durable: "old", Start: Start{Policy: "all"}, Handler: counts}
				if begin {
					var seq uint64
					_, after, _ := strings.Cut(list[0].Next, "seq: ")
					if _, err := fmt.Sscan(strings.TrimRight(strings.Fields(after)[0], "})"), &seq); err != nil {
						t.Fatalf("%v in %q", err, list[0].Next)
					}
					route.Durable, route.Start = "", Start{Policy: "seq", Seq: seq}
				}
				w.start(Config{Logger: quiet}, route)
				if begin {
					if err := w.js.DeleteConsumer(t.Context(), "JOBS", "old"); err != nil {
						t.Fatal(err)
					}
				}
				w.eventually("the rest is handled", func() bool { return handled.Load() == 10 })
			})
		}
	}
}

// A start without 1,000 routes of before wrote 1,000 lines.
func TestRelay_regressionTheLogNamesAFewOrphans(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var routes []Route
	for i := range 10 + 3 {
		routes = append(routes, Route{Name: fmt.Sprintf("r%d", i), Subjects: []string{fmt.Sprintf("orders.%d", i)}, Handler: HandlerFunc(hangs), Start: StartAll})
	}
	_, stop := w.start(Config{Logger: quiet}, routes...)
	w.eventually("all have durables", func() bool { return w.msgs("ORDERS").Consumers == len(routes) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	r, _ := w.start(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, routes[0])
	w.eventually("they are found", func() bool { return len(r.engine.Orphans.Found()) == len(routes)-1 })
	if n := log.count("something waits for a route"); n != 10 {
		t.Errorf("%d lines", n)
	}
	if n := log.count("more=2"); n != 1 {
		t.Errorf("the others are told of %d times", n)
	}
}

// orphansOf finds what waits for routes that are not among these, as relay orphans ls does.
func orphansOf(ctx context.Context, js jetstream.JetStream, service string, routes []Route) ([]orphans.Orphan, error) {
	var list []orphans.Route
	for _, rt := range routes {
		rt = rt.WithDefaults()
		list = append(list, orphans.Route{Name: rt.Name, Durable: rt.Durable, Divided: rt.Partitions > 0})
	}
	return orphans.NewSearch(js, service).All(ctx, list)
}
