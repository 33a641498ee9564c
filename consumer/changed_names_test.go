package consumer

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/orphans"
)

// Faults that TestConfigurations_nothingIsSkipped found.

// A durable was renamed, and what the old one had not delivered was given to the route as relay advises: the old durable itself counted as one
// that delivers it to the route, so it was acknowledged, and lost.
func TestMoveOrphans_regressionADurableThatWasRenamedLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	old := h.route("billing", Start{Policy: "all"}, "orders.>")
	_, stop := w.start(Config{Logger: quiet}, old)
	w.publish("orders.eu", 2)
	w.eventually("they are handled", func() bool { return h.count("billing") == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.us", 3)
	renamed := old
	renamed.Durable, renamed.Start = "billing", Start{Policy: "new"}
	w.start(Config{Logger: quiet}, renamed)
	list, err := orphansOf(t.Context(), w.js, "", []Route{renamed})
	if err != nil || len(list) != 1 || list[0].Messages != 3 {
		t.Fatalf("%v %v", list, err)
	}
	if moved, err := (orphans.Move{From: "billing", To: "billing"}).Do(t.Context(), w.js, list); err != nil || moved.Durable != 3 {
		t.Errorf("moved %+v: %v", moved, err)
	}
	w.eventually("what the old durable had is handled", func() bool { return h.count("billing") == 5 })
	if list := h.wrong(); len(list) > 0 {
		t.Errorf("wrong: %q", list)
	}
}

// A route with instances: one got another durable, and the old one was never named: the very instance counted as one that would take it, and no stream
// was looked at before it had the claim. With two durables on a stream each orphan was named twice.
func TestRelay_regressionTheOldDurableOfARouteWithOneInstanceIsNamedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	one := func(durable, name, subject string) Route {
		r := h.route(name, Start{Policy: "all"}, subject)
		r.Durable, r.Instances = durable, InstancesOne
		return r
	}
	_, stop := w.start(Config{Logger: quiet}, one("old", "a", "orders.a"), one("b", "b", "orders.b"))
	w.publish("orders.a", 2)
	w.eventually("they are handled", func() bool { return h.count("a") == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.a", 3)
	r, _ := w.start(Config{Logger: quiet}, one("next", "a", "orders.a"), one("b", "b", "orders.b"))
	r.engine.Orphans.Find(t.Context()) // perhaps before it has a claim
	if n := strings.Count(strings.Join(r.Status().Trouble, "\n"), "durable old on stream ORDERS of route a: 3 messages wait"); n != 1 {
		t.Errorf("named %d times: %v", n, r.Status().Trouble)
	}
	w.eventually("both are handled", func() bool { return len(r.engine.Running.Sources()) >= 4 })
	r.engine.Orphans.Find(t.Context())
	if n := strings.Count(strings.Join(r.Status().Trouble, "\n"), "durable old on stream ORDERS of route a: 3 messages wait"); n != 1 {
		t.Errorf("later named %d times: %v", n, r.Status().Trouble)
	}
}

// A route with instances: one came by a reload, which was through before the durable was made: with start: new, what was published from then on was
// skipped.
func TestChange_regressionTheDurableOfARouteWithOneInstanceIsThereWhenTheChangeIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	r, _ := w.start(Config{Logger: quiet}, h.route("a", Start{Policy: "all"}, "orders.a"))
	b := h.route("b", Start{Policy: "new"}, "orders.b")
	b.Durable, b.Instances = "b", InstancesOne
	if _, err := r.Change(t.Context(), Change{Add: []Route{b}}); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.b", 3)
	w.eventually("they are handled", func() bool { return h.count("b") == 3 })
}

// A reload was judged by a list of durables from up to a second before, that is, from before the reload that it follows: on a work queue it was
// accepted, and the route waited for a durable that cannot be made.
func TestChange_regressionWhatTheChangeBeforeMadeCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.retention("JOBS", jetstream.WorkQueuePolicy, "jobs.>")
	var h handledBy
	all := Start{Policy: "all"}
	route := func(durable string, subjects ...string) Route {
		r := h.route("a", all, subjects...)
		r.Durable = durable
		return r
	}
	r, _ := w.start(Config{Logger: quiet}, route("x", "jobs.a"))
	if _, _, err := r.engine.Listings.Of(t.Context(), w.streamNamed("JOBS")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Change(t.Context(), Change{Update: []Route{route("x", "jobs.a", "jobs.b")}}); err != nil {
		t.Fatal(err)
	}
	if done, err := r.Change(t.Context(), Change{Update: []Route{route("y", "jobs.b")}}); err == nil {
		t.Errorf("it was accepted: %+v", done)
	}
}

func (w *world) streamNamed(name string) jetstream.Stream {
	w.t.Helper()
	st, err := w.js.Stream(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// What a durable had passed, and what was handed over to its route, counted as not handled when the durable was renamed.
func TestAgain_regressionWhatWasHandedOverCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	all := Start{Policy: "all"}
	r, stop := w.start(Config{Logger: quiet}, h.route("a", all, "orders.a"))
	w.publish("orders.b", 3)
	if _, err := r.Change(t.Context(), Change{Add: []Route{h.route("b", all, "orders.b")}}); err != nil {
		t.Fatal(err)
	}
	w.eventually("they are handed over", func() bool { return h.count("b") == 3 && r.engine.Routes.All()[1].CatchUp() == nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b := h.route("b", all, "orders.b")
	b.Durable = "own"
	r, _ = w.start(Config{Logger: quiet}, h.route("a", all, "orders.a"))
	if err := r.Check(t.Context(), Change{Add: []Route{b}}); err == nil || !strings.Contains(err.Error(), "up to 3 messages were handled from durable shared") {
		t.Errorf("the change: %v", err)
	}
}

// A route moved from a durable of its own to a shared one. That had passed what the route had handled, and handed all of it over again, without a word.
func TestAgain_regressionAMoveToADurableThatIsThereSaysWhatComesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	all := Start{Policy: "all"}
	a, b := h.route("a", all, "orders.a"), h.route("b", all, "orders.b.>")
	b.Durable = "own"
	r, _ := w.start(Config{Logger: quiet}, a, b)
	w.publish("orders.b.1", 3)
	w.eventually("they are handled", func() bool { return h.count("b") == 3 && w.info("ORDERS", "own").NumAckPending == 0 })
	moved := h.route("b", all, "orders.b.>")
	if err := r.Check(t.Context(), Change{Update: []Route{moved}}); err == nil || !strings.Contains(err.Error(), "up to 3 messages were handled from durable own") {
		t.Errorf("the change: %v", err)
	}
	planned, err := New(w.s.Conn(t), Config{Logger: quiet}, a, moved)
	if err != nil {
		t.Fatal(err)
	}
	if plan, err := planned.Plan(t.Context()); err != nil || !plan.Refused() || len(plan.Durables) != 1 || len(plan.Durables[0].Again) != 1 {
		t.Errorf("plan: %+v %v", plan, err)
	}
	moved.Start = Start{Policy: "seq", Seq: 4} // as it says
	if _, err := r.Change(t.Context(), Change{Update: []Route{moved}}); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.b.2", 2)
	w.eventually("the new ones are handled", func() bool { return h.count("b") == 5 })
	if list := h.wrong(); len(list) > 0 {
		t.Errorf("wrong: %q", list)
	}
}

// A route moved from a shared durable to one of its own. The shared one went on delivering its subjects, and each message was handled and kept in the
// retry stream for no route, for ever, to be handled once more if the route came back.
func TestStrays_regressionWhatAnotherDurableDeliversIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	all := Start{Policy: "all"}
	a, b := h.route("a", all, "orders.a"), h.route("b", all, "orders.b.>")
	r, _ := w.start(Config{Logger: quiet}, a, b)
	w.publish("orders.b.1", 3)
	w.eventually("they are handled", func() bool { return h.count("b") == 3 })
	own := b
	own.Durable, own.Start = "own", Start{Policy: "new"}
	if _, err := r.Change(t.Context(), Change{Update: []Route{own}}); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.b.2", 4)
	w.eventually("they are handled from its own durable", func() bool { return h.count("b") == 7 })
	w.settled("ORDERS", "shared")
	if n := w.kept("relay.>"); n != 0 {
		t.Errorf("%d are kept", n)
	}
	w.eventually("the ledger is balanced", func() bool {
		a := audit.Auditor{JS: w.js, API: "$JS.API.", Service: "relay", Retry: "RELAY_RETRY", Book: r.engine.Stores.Ledgers}
		b, err := a.Audit(t.Context(), "ORDERS", "shared", audit.AllRoutes, 0)
		if err == nil && b.Verdict != audit.Balanced {
			t.Logf("%+v", b)
		}
		return err == nil && b.Verdict == audit.Balanced
	})
	if list := h.wrong(); len(list) > 0 {
		t.Errorf("wrong: %q", list)
	}
}
