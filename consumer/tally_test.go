package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/supervisor"
)

// audit is what an audit of ORDERS/billing says.
func (w *world) audit(patience time.Duration) audit.Balance {
	w.t.Helper()
	book, err := audit.Attach(w.t.Context(), w.js, "relay")
	if err != nil {
		w.t.Fatal(err)
	}
	a := audit.Auditor{JS: w.js, API: jetstream.DefaultAPIPrefix, Service: "relay", Retry: "RELAY_RETRY", Book: book,
		Lives: func(string) bool { return false }}
	b, err := a.Audit(w.t.Context(), "ORDERS", "billing", audit.AllRoutes, patience)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// everyEnd has a route whose messages end, or wait, as their subjects say.
func everyEnd(broken func() bool) Route {
	return Route{
		Name: "billing", Subjects: []string{"orders.>"}, Retry: Retry{ParkAfter: time.Minute}, Timeout: 10 * time.Second,
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}}, // a key that tripped would ask one message at a time
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			switch what := strings.TrimPrefix(m.Subject, "orders."); {
			case what == "dead" && broken():
				return Dead(errors.New("never"))
			case what == "drop":
				return Drop("why not")
			case what == "retry" && m.Attempt == 1:
				return RetryIn(time.Millisecond, errors.New("not yet"))
			case what == "park" && m.Attempt == 1:
				return RetryIn(time.Hour, errors.New("much later"))
			case what == "wait":
				return RetryIn(30*time.Second, errors.New("later"))
			}
			return nil
		}),
	}
}

// What came is what ended and what waits, to the message, over two instances, retries, parked messages, dead letters, their replay,
// clean ends and a start anew.
func TestLedger_balancesToTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replaying := make(chan struct{})
	route := everyEnd(func() bool {
		select {
		case <-replaying:
			return false
		default:
			return true
		}
	})
	_, stopA := w.start(Config{Instance: "a", Logger: quiet}, route)
	_, stopB := w.start(Config{Instance: "b", Logger: quiet}, route)
	for _, what := range []string{"ok", "dead", "drop", "retry", "park", "wait"} {
		w.publish("orders."+what, 20)
	}
	w.eventually("all but those that wait are through", func() bool {
		i := w.info("ORDERS", "billing")
		return i.NumPending == 0 && i.NumAckPending == 20 && len(w.deadLetters()) == 20
	})
	close(replaying)
	store, err := dlq.Attach(t.Context(), w.js, "")
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := dlq.OpenJobs(t.Context(), w.js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := store.Plan(t.Context(), dlq.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	job := &dlq.Job{ID: "job-1", State: dlq.JobRunning, Runner: "me", Total: 20, Wait: true, Last: plan.Last}
	if err := jobs.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if err := (&dlq.Run{Store: store, Jobs: jobs, Job: job, Plan: plan, Runner: "me"}).Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled("RELAY_RETRY", "billing--ORDERS")
	_, _ = stopA(), stopB()
	want := audit.Counts{Received: 120, Replayed: 20, Done: 60, Dead: 20, Dropped: 20}
	if b := w.audit(0); b.Verdict != audit.Balanced || b.Total != want || b.Outstanding != 20 || b.Parked != 20 || !b.Whole || b.Uncounted != 0 || b.Killed != 0 {
		t.Errorf("after two instances: %+v", b)
	}
	// Another one goes on with the same ledger, also while it runs.
	c, stop := w.start(Config{Instance: "c", Logger: quiet}, route)
	w.publish("orders.ok", 5)
	w.eventually("these are through", func() bool { i := w.info("ORDERS", "billing"); return i.NumPending == 0 && i.NumAckPending == 20 })
	want.Received, want.Done = want.Received+5, want.Done+5
	units := c.engine.Running.Units()
	if err := units[0].Tally.Write(t.Context()); err != nil { // which it does by itself every five seconds
		t.Fatal(err)
	}
	if b := w.audit(20 * time.Second); b.Verdict != audit.Balanced || b.Total != want || b.Uncounted != 0 {
		t.Errorf("while it runs: %+v", b)
	}
	_ = stop()

	// Somebody settles a message that waits. Nothing that relay counted explains that.
	info := w.info("ORDERS", "billing")
	forged := fmt.Sprintf("$JS.ACK.ORDERS.billing.1.%d.%d.%d.0", info.AckFloor.Stream+1, info.Delivered.Consumer, time.Now().UnixNano())
	if _, err := w.nc.Request(forged, []byte("+ACK"), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if b := w.audit(0); b.Verdict != audit.Unexplained || b.Difference != 1 {
		t.Errorf("after a forged ack: %+v", b)
	}
}

// An instance whose connection is gone writes nothing any more. What that can cost is in the record, and the audit says so.
func TestLedger_regressionAKillIsNamedAndBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	slow := everyEnd(func() bool { return true })
	slow.AckWait = time.Second
	held := slow
	held.Handler = HandlerFunc(func(ctx context.Context, m *Msg) error {
		if m.Subject == "orders.ok" {
			return nil
		}
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	a, stopA := w.start(Config{Instance: "a", Logger: quiet, Drain: time.Second}, held)
	w.publish("orders.hold", 3)
	w.publish("orders.ok", 10)
	w.eventually("ten are through", func() bool { return w.info("ORDERS", "billing").NumAckPending == 3 })
	a.engine.Conn.Close()
	_ = stopA()
	_, stopB := w.start(Config{Instance: "b", Logger: quiet}, slow)
	w.settled("ORDERS", "billing")
	_ = stopB()
	b := w.audit(0)
	if b.Verdict != audit.Balanced && b.Verdict != audit.Explained || b.Uncounted+int64(b.Killed) == 0 {
		t.Errorf("%+v", b)
	}
}
