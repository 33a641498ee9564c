package replayed

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// said is what was logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

func begin(t *testing.T) (s *natstest.Server, v *Verdicts, js jetstream.JetStream, log *said) {
	s, log = natstest.Start(t), new(said)
	js = s.JetStream(t)
	return s, New(Config{JetStream: js, Service: "relay", Log: slog.New(slog.NewTextHandler(log, nil))}), js, log
}

// All verdicts of several jobs are with their jobs, more at once than one value takes.
func TestVerdicts_reachTheirJobs(t *testing.T) {
	t.Parallel()
	_, v, js, log := begin(t)
	jobs, err := dlq.OpenJobs(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { v.Run(ctx) })
	many := map[string]int{"01AAA": 2*tellAtOnce + 1, "01BBB": 7}
	for job, n := range many {
		for i := range n {
			v.Add(job, dlq.Verdict{Message: fmt.Sprint("ORDERS-", i), OK: i%2 == 0})
		}
	}
	natstest.Eventually(t, "all is told", func() bool {
		for job, n := range many {
			tally, _, err := jobs.Results(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			if tally.OK+tally.Failed != n {
				return false
			}
		}
		return true
	})
	cancel()
	running.Wait()
	v.Add("01BBB", dlq.Verdict{Message: "late", OK: true})
	v.Flush(t.Context())
	if tally, _, err := jobs.Results(t.Context(), "01BBB"); err != nil || tally.OK+tally.Failed != many["01BBB"]+1 {
		t.Errorf("after the last flush: %+v, %v", tally, err)
	}
	if v.GiveUp(); log.has("lost") {
		t.Errorf("logged %s", &log.text)
	}
}

// Nobody waits for verdicts whose job is not there, and none stands in the way of those of another job.
func TestVerdicts_withoutTheirJobs(t *testing.T) {
	t.Parallel()
	_, v, js, log := begin(t)
	v.Add("01AAA", dlq.Verdict{Message: "a"})
	v.Flush(t.Context())
	if !log.has("verdicts of replayed messages are lost") || !log.has("bucket not found") {
		t.Errorf("without a bucket, logged %s", &log.text)
	}
	jobs, err := dlq.OpenJobs(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	v.Add("no job", dlq.Verdict{Message: "a"})
	v.Add("01AAA", dlq.Verdict{Message: "a"})
	v.Flush(t.Context())
	if tally, _, err := jobs.Results(t.Context(), "01AAA"); err != nil || tally.Failed != 1 {
		t.Errorf("%+v, %v", tally, err)
	}
	if !log.has(`job="no job"`) {
		t.Errorf("logged %s", &log.text)
	}
}

// The end of a drain waited for a flush that was under way, which tries for half a minute.
func TestVerdicts_regressionAFlushUnderWayEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, v, _, log := begin(t)
	s.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { v.Run(ctx) })
	v.Add("01AAA", dlq.Verdict{Message: "a", OK: true})
	natstest.Eventually(t, "it is being written", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.pending) == 0
	})
	began := time.Now()
	cancel()
	running.Wait()
	last, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	v.Flush(last)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it takes %v", took)
	}
	if v.GiveUp(); !log.has("relay ends\" job=01AAA count=1") {
		t.Errorf("logged %s", &log.text)
	}
}

// While NATS is away verdicts wait, in bounded memory. A flush ends with its context, and what could not be written is told.
func TestVerdicts_whileNATSIsAway(t *testing.T) {
	t.Parallel()
	s, v, js, log := begin(t)
	if _, err := dlq.OpenJobs(t.Context(), js, "relay", 1); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	for i := range maxUntold + 3 {
		v.Add("01AAA", dlq.Verdict{Message: fmt.Sprint(i), OK: true})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	v.Flush(ctx)
	if !log.has("too many could not be written") || !log.has("count=3") {
		t.Errorf("logged %s", &log.text)
	}
	if v.GiveUp(); !log.has(fmt.Sprint("relay ends\" job=01AAA count=", maxUntold)) {
		t.Errorf("logged %s", &log.text)
	}
	s.Restart()
	v.Flush(t.Context())
	jobs, err := dlq.AttachJobs(t.Context(), js, "relay")
	if err != nil {
		t.Fatal(err)
	}
	if tally, _, err := jobs.Results(t.Context(), "01AAA"); err != nil || tally.OK != maxUntold {
		t.Errorf("when NATS is back: %+v, %v", tally, err)
	}
}
