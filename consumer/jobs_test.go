package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/supervisor"
)

// Every way in which a first attempt ends is told to the job, once for each message.
func TestJobs_firstVerdicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := make(chan struct{})
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry:      Retry{MaxAttempts: 3, Backoff: supervisor.Backoff{Min: 20 * time.Millisecond}},
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: 10 * time.Millisecond}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			select {
			case <-broken:
			default:
				return Dead(errors.New("broken"))
			}
			switch what := strings.TrimPrefix(m.Subject, "orders."); {
			case what == "dead":
				return Dead(errors.New("never"))
			case what == "drop":
				return Drop("why not")
			case what == "panic" && m.Attempt == 1:
				panic("boom")
			case what == "retry" && m.Attempt == 1:
				return errors.New("not yet")
			case what == "snooze" && m.Header.Get("x") == "" && m.Attempt == 1:
				return nil
			}
			return nil
		}),
	})
	subjects := []string{"ack", "dead", "drop", "panic", "retry"}
	for _, s := range subjects {
		w.publish("orders."+s, 2)
	}
	n := 2 * len(subjects)
	w.eventually("dead letters", func() bool { return len(w.deadLetters()) == n })
	close(broken)
	jobs, err := dlq.OpenJobs(t.Context(), w.js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	store, err := dlq.Attach(t.Context(), w.js, "")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := store.Plan(t.Context(), dlq.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	job := &dlq.Job{ID: "job-1", State: dlq.JobRunning, Runner: "me", Total: n, Wait: true, Last: plan.Last}
	if err := jobs.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	run := &dlq.Run{Store: store, Jobs: jobs, Job: job, Plan: plan, Runner: "me"}
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled("RELAY_RETRY", "billing--ORDERS")
	tally, failures, err := jobs.Results(t.Context(), "job-1")
	if err != nil || tally != (dlq.Tally{OK: 4, Failed: 6}) || len(failures) != 3 {
		t.Errorf("%+v, %+v, %v", tally, failures, err)
	}
}

// I-18: without a place for a dead letter its message stays, other routes go on, and all is well soon after.
func TestRelay_noDeadLetterStreamKeepsTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("PARCELS", "parcels.>")
	l := newLedger()
	r, _ := w.start(Config{},
		Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return Dead(errors.New("no")) })},
		Route{Name: "shipping", Subjects: []string{"parcels.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil })})
	if err := w.js.DeleteStream(t.Context(), "RELAY_DLQ"); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu.created", 20)
	w.eventually("it is said", func() bool { return r.Ready() != nil })
	w.publish("parcels.eu", 50)
	w.eventually("the other route goes on", func() bool { return l.len() == 50 })
	if p := w.info("ORDERS", "billing").NumAckPending; p != 20 {
		t.Errorf("%d messages are kept, want 20", p)
	}
	if _, err := dlq.Open(t.Context(), w.js, dlq.Config{}); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	w.eventually("dead letters", func() bool { return len(w.deadLetters()) == 20 })
	if took := time.Since(healed); took > 10*time.Second {
		t.Errorf("healed after %v", took)
	}
	w.settled("ORDERS", "billing")
	seen := map[string]bool{}
	for _, e := range w.deadLetters() {
		seen[fmt.Sprint(e.Sequence)] = true
	}
	if len(seen) != 20 {
		t.Errorf("%d distinct entries", len(seen))
	}
}
