package dlq

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

// elsewhere is a dead letter that an import brought from a service which reads another stream.
func elsewhere(seq uint64) Entry {
	e := entry(seq)
	e.Stream = "LEGACY"
	return e
}

// An imported entry of a stream that no route reads was handed over to a subject that no durable takes, and its job waited for ever.
func TestRun_regressionWhatNobodyTakesStays(t *testing.T) {
	s, js := setup(t, Config{})
	gone := entry(3)
	gone.Route = "closed"
	put(t, s, elsewhere(1), entry(2), gone)
	jobs := openJobs(t, js)
	plan, err := s.Plan(t.Context(), Choice{ToRoute: true})
	if err != nil || plan.Total != 1 || plan.Refused != 2 || len(plan.Reasons) != 2 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	// A plan that did not look, or was made when the durable was there still.
	run := newRun(t, s, jobs, Job{}, Choice{})
	var told []Refusal
	run.Refused = func(r Refusal) { told = append(told, r) }
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	job, err := jobs.Get(t.Context(), run.Job.ID)
	if err != nil || job.State != JobDone || job.Handed != 1 || job.Refused != 2 || len(job.Refusals) != 2 || len(job.Reasons) != 2 || len(told) != 2 {
		t.Errorf("%+v, %v, told %v", job, err, told)
	}
	for _, r := range job.Refusals {
		if !strings.Contains(r.Why, "no instance takes what is replayed to route") || !strings.Contains(r.Why, "--to-subject") {
			t.Errorf("refused because %s", r.Why)
		}
	}
	if n, left := messages(t, js, "RELAY_RETRY"), messages(t, js, s.Name()); n != 1 || left != 2 {
		t.Errorf("%d handed over, %d left", n, left)
	}
	for _, e := range collect(t, s, Filter{}) {
		if err := s.Replay(t.Context(), e, Target{}); !errors.Is(err, ErrRefused) {
			t.Errorf("alone: %v, want ErrRefused", err)
		}
	}
}

// A job that waits for verdicts of what lies where nobody takes it ends and says so.
func TestRun_regressionAJobEndsWhoseMessagesNobodyTakes(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1))
	jobs := openJobs(t, js)
	run := newRun(t, s, jobs, Job{Wait: true}, Choice{})
	id := run.Job.ID
	ended := make(chan error, 1)
	go func() { ended <- run.Do(t.Context()) }()
	natstest.Eventually(t, "it says that no instance asks", func() bool {
		job, err := jobs.Get(t.Context(), id)
		return err == nil && len(job.WaitsFor) == 1 && job.WaitsFor[0].Route == "billing" && job.WaitsFor[0].Messages == 1 && !job.WaitsFor[0].Since.IsZero()
	})
	if err := js.DeleteConsumer(t.Context(), "RELAY_RETRY", "billing--ORDERS"); err != nil {
		t.Fatal(err)
	}
	var err error
	select {
	case err = <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	var stopped *StoppedError
	if !errors.As(err, &stopped) || !errors.Is(err, ErrNobody) || !strings.Contains(err.Error(), "1 messages are in the retry stream for route billing of stream ORDERS") {
		t.Errorf("ended with %v", err)
	}
	job, err := jobs.Get(t.Context(), run.Job.ID)
	if err != nil || job.State != JobStopped || len(job.WaitsFor) != 0 {
		t.Errorf("%+v, %v", job, err)
	}
}

// A verdict was lost, and the job waited for a message of another job that nobody takes.
func TestRun_regressionMessagesOfOtherJobsAreNotWaitedFor(t *testing.T) {
	s, js := setup(t, Config{})
	m := &nats.Msg{Subject: "relay.due.billing.LEGACY.7-1-r1", Header: retry.Wrap(elsewhere(7).Origin, nil)}
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	put(t, s, entry(1))
	run := newRun(t, s, openJobs(t, js), Job{Wait: true}, Choice{})
	ended := make(chan error, 1)
	go func() { ended <- run.Do(t.Context()) }()
	c, err := js.Consumer(t.Context(), "RELAY_RETRY", "billing--ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	taken, err := c.Next(jetstream.FetchMaxWait(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	settle(t, taken)
	select {
	case err = <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	if err != nil {
		t.Error(err)
	}
}
