package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/supervisor"
)

// batchLedger notes what a batch handler got.
type batchLedger struct {
	mu       sync.Mutex
	done     map[string]int // successes by subject
	alone    map[string]int // batches of one
	attempts map[string]int // the highest attempt that was seen
	largest  int
}

func newBatchLedger() *batchLedger {
	return &batchLedger{done: map[string]int{}, alone: map[string]int{}, attempts: map[string]int{}}
}

// handler fails, panics or waits for its end as the subjects of a batch say.
func (l *batchLedger) handler(ctx context.Context, batch []*Msg) ([]error, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.largest = max(l.largest, len(batch))
	for _, m := range batch {
		l.attempts[m.Subject] = max(l.attempts[m.Subject], m.Attempt)
		if len(batch) == 1 {
			l.alone[m.Subject]++
		}
	}
	errs := make([]error, len(batch))
	for i, m := range batch {
		switch kind, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, "orders."), "."); kind {
		case "poison":
			return nil, errors.New("poison")
		case "panic":
			panic("boom")
		case "named":
			errs[i] = errors.New("not this one")
		}
	}
	for i, m := range batch {
		if errs[i] == nil {
			l.done[m.Subject]++
		}
	}
	return errs, nil
}

// Poison among a thousand messages: each of the others succeeds once, at its first attempt, and the poison alone is charged and
// dead-lettered, whether its batch fails as a whole, panics, or names it.
func TestBatch_poisonIsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newBatchLedger()
	const messages, attempts = 1000, 2
	bad := map[int]string{17: "poison", 333: "poison", 640: "panic", 850: "named"}
	w.start(Config{Logger: quiet}, Route{
		Name: "bulk", Subjects: []string{"orders.>"}, Handler: BatchFunc(l.handler), Batch: &Batch{Size: 50, Wait: 50 * time.Millisecond},
		Retry: Retry{MaxAttempts: attempts, Backoff: supervisor.Backoff{Min: 50 * time.Millisecond, Max: 50 * time.Millisecond}},
	})
	for i := range messages {
		kind := "good"
		if k, ok := bad[i]; ok {
			kind = k
		}
		w.publish(fmt.Sprintf("orders.%s.%d", kind, i), 1)
	}
	w.eventually("all is done or dead", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.done) == messages-len(bad) && len(w.deadLetters()) == len(bad)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for subject, n := range l.done {
		if n != 1 || l.attempts[subject] != 1 {
			t.Errorf("%s: %d successes, %d attempts", subject, n, l.attempts[subject])
		}
	}
	for _, e := range w.deadLetters() {
		if e.Attempts != attempts || strings.Contains(e.Subject, "good") {
			t.Errorf("dead: %s after %d attempts", e.Subject, e.Attempts)
		}
	}
	for i, kind := range bad {
		n := l.alone[fmt.Sprintf("orders.%s.%d", kind, i)]
		if kind == "poison" && n != attempts || kind == "panic" && n < attempts { // one that panics as the last half is not charged
			t.Errorf("the %s ran alone %d times", kind, n)
		}
	}
	if l.largest < 2 || l.largest > 50 {
		t.Errorf("the largest batch had %d messages", l.largest)
	}
}

// batchVerdicts hands n messages to b at once.
func batchVerdicts(t *testing.T, b *batcher, n int) []Verdict {
	list := make([]Verdict, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { list[i] = VerdictOf(b.Handle(t.Context(), &Msg{ID: fmt.Sprint(i)})) })
	}
	calls.Wait()
	return list
}

// Three messages that were dead on their own were taken for an outage, and the others of their batch were not tried.
func TestBatcher_regressionDeadOnesAreNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher(BatchFunc(func(context.Context, []*Msg) ([]error, error) { return nil, Dead(errors.New("no")) }), Batch{Size: 64}.WithDefaults(), 64)
		for i, v := range batchVerdicts(t, b, 64) {
			if v.Kind != VerdictDead {
				t.Errorf("message %d: %+v", i, v)
			}
		}
	})
}

// A batch that was dropped, or done by a child that then stops, was halved, and the work done again for each message.
func TestBatcher_regressionDoneAsAWhole(t *testing.T) {
	for _, said := range []error{Drop("nobody wants them"), StopChild(errors.New("enough"))} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			b := newBatcher(BatchFunc(func(context.Context, []*Msg) ([]error, error) { runs++; return nil, said }), Batch{Size: 64}.WithDefaults(), 64)
			for i, v := range batchVerdicts(t, b, 64) {
				if want := VerdictOf(said); v.Kind != want.Kind || v.StopChild != want.StopChild {
					t.Errorf("message %d: %+v, want %+v", i, v, want)
				}
			}
			if runs != 1 {
				t.Errorf("%v: the batch ran %d times", said, runs)
			}
		})
	}
}

// A message that ran alone was done when the handler returned several errors for it, the first of them nil.
func TestBatcher_regressionErrorsOfOneThatRunsAlone(t *testing.T) {
	f := BatchFunc(func(context.Context, []*Msg) ([]error, error) { return []error{nil, errors.New("no")}, nil })
	b := newBatcher(f, Batch{Bytes: 1 << 10}.WithDefaults(), 64)
	for _, h := range []Handler{f, b} {
		if v := VerdictOf(h.Handle(t.Context(), &Msg{ID: "a", Data: make([]byte, 2<<10)})); v.Kind != VerdictRetry {
			t.Errorf("%T: %+v", h, v)
		}
	}
}

// A message that waited for its batch is no part of it when its caller has gone meanwhile.
func TestBatch_regressionAsksLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := make(chan []string, 10)
	rt := permitted(Route{Handler: BatchFunc(func(_ context.Context, batch []*Msg) ([]error, error) {
		var names []string
		for _, m := range batch {
			names = append(names, string(m.Data))
		}
		got <- names
		return nil, nil
	}), Batch: &Batch{Size: 10, Wait: 2 * time.Second}})
	r, _ := w.start(Config{}, rt)
	r.engine.Line.SetGrace(0, time.Second)
	stays := w.caller(sayYes)
	var gone atomic.Bool
	goes := w.caller(func(q *nats.Msg) {
		if gone.Load() {
			sayNo(q)
		} else {
			sayYes(q)
		}
	})
	stays.publish("orders.1", "stays", nil)
	goes.publish("orders.2", "goes", nil)
	w.eventually("both were asked", func() bool { return stays.asked.Load() == 1 && goes.asked.Load() == 1 })
	gone.Store(true)
	stays.reply("done")
	goes.reply("forgotten")
	if names := <-got; len(names) != 1 || names[0] != "stays" || len(got) > 0 {
		t.Errorf("got %v, and %d batches more", names, len(got))
	}
}
