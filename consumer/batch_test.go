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

// What does not depend on a server, by the batcher itself.
func TestBatcher(t *testing.T) {
	msg := func(n, size int) *Msg { return &Msg{ID: fmt.Sprint(n), Data: make([]byte, size)} }
	all := func(b *batcher, ctx context.Context, n, size int) []Verdict {
		list := make([]Verdict, n)
		var calls sync.WaitGroup
		for i := range n {
			calls.Go(func() { list[i] = VerdictOf(b.Handle(ctx, msg(i, size))) })
		}
		calls.Wait()
		return list
	}
	t.Run("an outage charges three", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			runs := 0 // of one batch, one after the other
			b := newBatcher(BatchFunc(func(context.Context, []*Msg) ([]error, error) { runs++; return nil, errors.New("down") }), Batch{Size: 64}.WithDefaults(), 64)
			charged := 0
			for _, v := range all(b, t.Context(), 64, 1) {
				if v.Kind != VerdictRetry {
					t.Errorf("%+v", v)
				}
				if !v.NotStarted {
					charged++
				}
			}
			if charged != batchOutage || runs > 12 {
				t.Errorf("%d are charged, after %d runs", charged, runs)
			}
		})
	})
	t.Run("time, bytes and a caller who leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var sizes []int
			b := newBatcher(BatchFunc(func(_ context.Context, list []*Msg) ([]error, error) {
				mu.Lock()
				defer mu.Unlock()
				sizes = append(sizes, len(list))
				return nil, nil
			}), Batch{Bytes: 1 << 10}.WithDefaults(), 64)
			began := time.Now()
			all(b, t.Context(), 3, 300)
			if took := time.Since(began); took != 200*time.Millisecond {
				t.Errorf("three messages took %v", took)
			}
			all(b, t.Context(), 4, 300) // the fourth does not fit
			all(b, t.Context(), 1, 2000)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if v := all(b, ctx, 1, 1)[0]; !v.NotStarted {
				t.Errorf("who left got %+v", v)
			}
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if fmt.Sprint(sizes) != "[3 3 1 1]" {
				t.Errorf("batches of %v", sizes)
			}
		})
	})
	t.Run("a hang", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			b := newBatcher(BatchFunc(func(context.Context, []*Msg) ([]error, error) { <-release; return nil, nil }), Batch{Size: 2}.WithDefaults(), 64)
			for i := range maxStuckBatches + 1 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				began := time.Now()
				var calls sync.WaitGroup
				for j := range 2 {
					calls.Go(func() {
						if v := VerdictOf(b.Handle(ctx, msg(2*i+j, 1))); v.Kind != VerdictSnooze {
							t.Errorf("%+v", v)
						}
					})
				}
				calls.Wait()
				if took := time.Since(began); took != time.Second+batchGrace {
					t.Errorf("given up after %v", took)
				}
				cancel()
			}
			if v := VerdictOf(b.Handle(t.Context(), msg(1000, 1))); !v.FailRoute {
				t.Errorf("with so many that hang: %+v", v)
			}
			if n := b.hung(); n != maxStuckBatches+1 {
				t.Errorf("%d are counted as hung", n)
			}
			close(release)
			synctest.Wait()
			if n := b.hung(); n != 0 {
				t.Errorf("%d are counted as hung after they returned", n)
			}
		})
	})
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
	r.line.SetGrace(0, time.Second)
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
