package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/supervisor"
)

// logLines is a log that can be searched.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

// only makes a handler that notes what it gets and fails the test for subjects that are not its own.
func (w *world) only(prefix string, handled *atomic.Int64) Handler {
	return HandlerFunc(func(_ context.Context, m *Msg) error {
		if !strings.HasPrefix(m.Subject, prefix) {
			w.t.Errorf("the handler of %s got %s", prefix, m.Subject)
		}
		handled.Add(1)
		return nil
	})
}

// kept counts what the retry stream holds, by subject.
func (w *world) kept(filter string) (n int) {
	w.t.Helper()
	st, err := w.js.Stream(w.t.Context(), "RELAY_RETRY")
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := st.Info(w.t.Context(), jetstream.WithSubjectFilter(filter))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, of := range info.State.Subjects {
		n += int(of)
	}
	return n
}

func (w *world) holds(stream string, subjects ...string) {
	w.t.Helper()
	st, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	config := st.CachedInfo().Config
	config.Subjects = subjects
	if _, err := w.js.UpdateStream(w.t.Context(), config); err != nil {
		w.t.Fatal(err)
	}
}

// A durable whose routes cover the stream has no filter, and a lone route compared no subjects: when the stream got more
// of them, the handler got messages that were not its own, and the next start refused relay's own durable.
func TestRelay_regressionTheHandlerOfALoneRouteGetsOnlyItsSubjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var handled atomic.Int64
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: w.only("orders.", &handled), Start: Start{Policy: "all"}}
	r, stop := w.start(Config{}, route)
	if f := provision.Filters(w.info("ORDERS", "billing").Config); len(f) > 0 {
		t.Errorf("made with filters %q although its routes cover the stream", f)
	}
	w.publish("orders.eu", 1) // with its first delivery the durable is looked at
	w.settled("ORDERS", "billing")
	w.holds("ORDERS", "orders.>", "payments.>")
	for range 20 { // at once: the first that arrives has relay set the filter, and what is not delivered before that is not kept
		if err := w.nc.Publish("payments.eu", []byte("0")); err != nil {
			t.Fatal(err)
		}
	}
	w.publish("orders.eu", 20)
	w.eventually("the route's own are handled", func() bool { return handled.Load() == 21 })
	w.eventually("the durable asks for nothing else any more", func() bool {
		return slices.Equal(provision.Filters(w.info("ORDERS", "billing").Config), []string{"orders.>"})
	})
	if text := strings.Join(r.Status().Trouble, "\n"); !strings.Contains(text, "payments.eu") {
		t.Errorf("status says %q", text)
	}
	w.eventually("what came before is kept", func() bool { return w.kept("relay.due.~.ORDERS.>") == 20 })
	w.settled("ORDERS", "billing")
	if err := stop(); err != nil {
		t.Error(err)
	}
	w.publish("payments.eu", 20)
	w.publish("orders.eu", 20)
	w.start(Config{}, route)
	w.eventually("it goes on after a restart", func() bool { return handled.Load() == 41 })
	w.settled("ORDERS", "billing")
	if n := w.kept("relay.>"); n != 20 {
		t.Errorf("%d messages kept, want 20", n)
	}
}

// Two instances with different routes share a durable during a rolling change. What one has no route for, the other gets,
// and nobody handles what is not its own.
func TestRelay_regressionRollingChangeOfASharedDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var eu, us atomic.Int64
	billing := Route{Name: "billing", Durable: "shared", Subjects: []string{"orders.eu.>"}, Handler: w.only("orders.eu.", &eu), Start: Start{Policy: "all"}}
	printing := Route{Name: "printing", Durable: "shared", Subjects: []string{"orders.us.>"}, Handler: w.only("orders.us.", &us), Start: Start{Policy: "all"}}
	w.start(Config{Instance: "old", Logger: quiet}, billing)
	w.publish("orders.eu.1", 50)
	w.eventually("the old one works", func() bool { return eu.Load() == 50 })

	joined, leave := w.start(Config{Instance: "new", Logger: quiet}, billing, printing)
	if f := provision.Filters(w.info("ORDERS", "shared").Config); !slices.Equal(f, []string{"orders.eu.>", "orders.us.>"}) {
		t.Fatalf("filters %q", f)
	}
	for range 100 {
		w.publish("orders.eu.1", 1)
		w.publish("orders.us.1", 1)
	}
	w.eventually("each is handled by its route", func() bool { return eu.Load() == 150 && us.Load() == 100 })
	w.settled("ORDERS", "shared")
	w.eventually("it is ready, once what the durable has passed is handed over", func() bool { return joined.Ready() == nil })

	// The route leaves again: what nobody has a route for waits for it, and is in nobody's way.
	if err := leave(); err != nil {
		t.Error(err)
	}
	w.publish("orders.us.1", 30)
	w.publish("orders.eu.1", 30)
	w.eventually("the others go on", func() bool { return eu.Load() == 180 })
	w.settled("ORDERS", "shared")
	if n := us.Load(); n != 100 {
		t.Fatalf("%d handled, though no route of their own runs", n-100)
	}
	w.start(Config{Instance: "new again", Logger: quiet}, billing, printing)
	w.eventually("they are handled once their route is back", func() bool { return us.Load() == 130 })

	// Told to, relay has the durable deliver the subjects of its own configuration only.
	w.start(Config{Instance: "adopting", Logger: quiet, Adopt: true}, billing)
	if f := provision.Filters(w.info("ORDERS", "shared").Config); !slices.Equal(f, []string{"orders.eu.>"}) {
		t.Errorf("adopted with filters %q", f)
	}
}

// Two deployments have the same service and the same name of a route, each on a stream of its own.
func TestRelay_regressionParkedMessagesReachTheRouteOfTheirStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("INVOICES", "invoices.>")
	const each = 40
	deploy := func(prefix string, handled *atomic.Int64) {
		only := w.only(prefix, handled)
		w.start(Config{Instance: prefix, Logger: quiet}, Route{
			Name: "billing", Subjects: []string{prefix + ">"}, Start: Start{Policy: "all"},
			Supervisor: supervisor.Config{TripAfter: new(1 << 20), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
			Retry:      Retry{ParkAfter: time.Millisecond, Backoff: supervisor.Backoff{Min: 300 * time.Millisecond}},
			Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
				if m.Attempt == 1 {
					return errors.New("not yet")
				}
				return only.(HandlerFunc)(ctx, m)
			}),
		})
	}
	var orders, invoices atomic.Int64
	deploy("orders.", &orders)
	deploy("invoices.", &invoices)
	for range each {
		w.publish("orders.x", 1)
		w.publish("invoices.x", 1)
	}
	w.eventually("each gets its own", func() bool { return orders.Load() == each && invoices.Load() == each })
	w.eventually("nothing is left", func() bool { return w.kept("relay.>") == 0 })
}

// Thousands of messages that match no route do not fill the durable, and the log says little of them.
func TestRelay_regressionMessagesWithoutARouteDoNotFillTheDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var handled atomic.Int64
	lines := new(logLines)
	r, _ := w.start(Config{Logger: slog.New(slog.NewTextHandler(lines, nil))}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: w.only("orders.", &handled)})
	w.publish("orders.eu", 1) // with its first delivery the durable is looked at
	w.settled("ORDERS", "billing")
	w.holds("ORDERS", "orders.>", "payments.>")
	const strays = 4000
	w.flood("payments.eu", strays)
	w.publish("orders.eu", 100)
	w.eventually("routed ones are handled", func() bool { return handled.Load() == 101 })
	w.settled("ORDERS", "billing")
	w.publish("orders.eu", 100)
	w.eventually("and go on", func() bool { return handled.Load() == 201 })
	n := int(r.engine.Running.Sources()[0].Count.Strays.Load())
	kept := w.kept("relay.>")
	t.Logf("%d arrivals, %d kept", n, kept)
	if n < kept || kept > strays {
		t.Errorf("%d arrivals, %d kept of %d", n, kept, strays)
	}
	if said := lines.count("no route of this instance wants"); said == 0 || said > 2 { // before and after it knows the new subject
		t.Errorf("the log says it %d times within a minute", said)
	}
}

// A new instance added a subject to a route. The old instance knew the route by its name, and kept what the new one wanted where
// nobody looked.
func TestStrays_regressionASubjectAddedToARouteReachesItsInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var before, after atomic.Int64
	narrow := Route{Name: "billing", Subjects: []string{"orders.a"}, Handler: w.only("orders.a", &before)}
	wide := Route{Name: "billing", Subjects: []string{"orders.a", "orders.b"}, Handler: w.only("orders.", &after)}
	w.start(Config{Instance: "old", Logger: quiet}, narrow)
	_, leave := w.start(Config{Instance: "new", Logger: quiet}, wide)
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	const count = 30
	w.publish("orders.b", count)
	w.eventually("they wait for an instance that wants them", func() bool { return w.kept("relay.due.~.ORDERS.>") == count })
	w.settled("ORDERS", "billing")
	if n := before.Load(); n > 0 {
		t.Fatalf("%d were handled by the old instance", n)
	}
	w.start(Config{Instance: "new again", Logger: quiet}, wide)
	w.start(Config{Instance: "another", Logger: quiet}, wide)
	w.publish("orders.b", count)
	w.eventually("the new ones handle them", func() bool { return after.Load() >= 2*count })
	w.eventually("nothing is left", func() bool { return w.kept("relay.>") == 0 })
	if n := after.Load(); n != 2*count {
		t.Errorf("%d were handled, want %d", n, 2*count)
	}
}
