package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench runs a group against a handler written as a function, and plays JetStream: what is given back, or is to be
// retried, comes again when it is due.
type bench struct {
	t *testing.T
	g *Group

	mu       sync.Mutex
	began    time.Time
	starts   []start
	outcomes map[uint64][]Outcome
	events   []Event
	failed   error
	escaped  error
	closed   bool
	returns  map[uint64]int
	stopped  []string // children
	// redeliver is off when a test looks at outcomes only.
	redeliver bool
}

type start struct {
	seq     uint64
	key     string
	attempt int
	at      time.Duration // since the bench began
	child   string
}

// handlerFunc is what the tests write. n counts the starts of this message.
type handlerFunc func(ctx context.Context, m *Message, n int) Verdict

type testWork struct {
	b      *bench
	m      *Message
	handle handlerFunc
}

func (w *testWork) Do(ctx context.Context, number int, c any) Verdict {
	b := w.b
	b.mu.Lock()
	name, _ := c.(string)
	b.starts = append(b.starts, start{w.m.Sequence, w.m.Key, number, time.Since(b.began), name})
	n := 0
	for _, s := range b.starts {
		if s.seq == w.m.Sequence {
			n++
		}
	}
	b.mu.Unlock()
	return w.handle(ctx, w.m, n)
}

func (w *testWork) Settle(o Outcome) {
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[w.m.Sequence] = append(b.outcomes[w.m.Sequence], o)
	again := o.Action == RetryLater || o.Action == GiveBack
	if !again || !b.redeliver || b.closed {
		return
	}
	if o.Action == GiveBack {
		b.returns[w.m.Sequence]++
	} else {
		b.returns[w.m.Sequence] = 0
	}
	m := &Message{
		Key: w.m.Key, Sequence: w.m.Sequence, Size: w.m.Size, Attempts: o.Attempts, FirstFailure: o.FirstFailure,
		Returns: b.returns[w.m.Sequence],
	}
	m.Work = &testWork{b, m, w.handle}
	time.AfterFunc(max(0, time.Until(o.Due)), func() {
		b.mu.Lock()
		closed := b.closed
		b.mu.Unlock()
		if !closed {
			b.g.Deliver(m)
		}
	})
}

func newBench(t *testing.T, opts Options) *bench {
	b := &bench{t: t, began: time.Now(), outcomes: map[uint64][]Outcome{}, returns: map[uint64]int{}, redeliver: true}
	opts.Event = func(e Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, e)
	}
	opts.Failed = func(err error) { b.failed = err }
	opts.Escalate = func(err error) { b.escaped = err }
	if opts.Retry.Jitter == nil {
		opts.Retry.Jitter = new(0.0)
	}
	if opts.Config.Restart.Jitter == nil {
		opts.Config.Restart.Jitter = new(0.0)
	}
	b.g = New(opts)
	return b
}

// close ends the group; every test calls it inside its bubble.
func (b *bench) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	b.g.Close(ctx)
}

func (b *bench) send(handle handlerFunc, key string, seqs ...uint64) {
	var ms []*Message
	for _, seq := range seqs {
		m := &Message{Key: key, Sequence: seq, Size: 100}
		m.Work = &testWork{b, m, handle}
		ms = append(ms, m)
	}
	b.g.Deliver(ms...)
}

func (b *bench) startsOf(seq uint64) (at []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.starts {
		if s.seq == seq {
			at = append(at, s.at)
		}
	}
	return at
}

// final is the outcome that ended the message.
func (b *bench) final(seq uint64) (Outcome, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	os := b.outcomes[seq]
	if len(os) == 0 {
		return Outcome{}, false
	}
	o := os[len(os)-1]
	return o, o.Action != RetryLater && o.Action != GiveBack
}

func (b *bench) wantFinal(seq uint64, action Action) Outcome {
	b.t.Helper()
	o, ended := b.final(seq)
	if !ended || o.Action != action {
		b.t.Errorf("message %d: final outcome %+v (ended %v), want action %d", seq, o, ended, action)
	}
	return o
}

func (b *bench) log() {
	for _, e := range b.events {
		b.t.Logf("event %+v", e)
	}
	for _, s := range b.starts {
		b.t.Logf("start %+v", s)
	}
}

var (
	errDown = errors.New("down")
	ok      = Verdict{Kind: Ack}
)

func succeed(context.Context, *Message, int) Verdict { return ok }

func failing(context.Context, *Message, int) Verdict { return Verdict{Kind: Retry, Err: errDown} }

func TestGroup_messagesAreHandledAndLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		for i := range uint64(1000) {
			b.send(succeed, fmt.Sprintf("k%d", i%100), i+1)
		}
		synctest.Wait()
		for i := range uint64(1000) {
			b.wantFinal(i+1, AckMessage)
		}
		if n := len(b.g.keys); n != 0 {
			t.Errorf("%d keys left", n)
		}
		b.close()
	})
}

func TestGroup_errorRetriesByTheMessagesOwnPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 4, Retry: Backoff{Min: time.Second}})
		b.send(failing, "k", 1)
		time.Sleep(time.Minute)
		want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}
		if got := b.startsOf(1); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("starts at %v, want %v", got, want)
		}
		if o := b.wantFinal(1, DeadLetter); o.Reason != ReasonExhausted || o.Attempts != 4 || !errors.Is(o.Err, errDown) {
			t.Errorf("outcome %+v", o)
		}
		b.close()
	})
}

func TestGroup_panicIsAStopAndAFreshChildFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		b := newBench(t, Options{
			Retry:  Backoff{Min: time.Second},
			Config: Config{Restart: Backoff{Min: 200 * time.Millisecond}},
			New: func(context.Context, string) (any, error) {
				made++
				return fmt.Sprintf("child-%d", made), nil
			},
		})
		b.send(func(_ context.Context, m *Message, n int) Verdict {
			if n == 1 {
				panic("boom")
			}
			return ok
		}, "k", 1)
		time.Sleep(5 * time.Second)
		b.wantFinal(1, AckMessage)
		if made != 2 || b.starts[1].child != "child-2" {
			t.Errorf("%d children made; second start by %s", made, b.starts[1].child)
		}
		b.close()
	})
}

func TestGroup_goexitFreesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1, Retry: Backoff{Min: time.Second}})
		b.send(func(_ context.Context, m *Message, n int) Verdict {
			if n == 1 {
				runtime.Goexit()
			}
			return ok
		}, "a", 1)
		b.send(succeed, "b", 2)
		synctest.Wait()
		b.wantFinal(2, AckMessage)
		time.Sleep(10 * time.Second)
		b.wantFinal(1, AckMessage)
		b.close()
	})
}

func TestGroup_hangIsAStopAndItsSlotIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1, Timeout: 5 * time.Second, Retry: Backoff{Min: time.Second}})
		release := make(chan struct{})
		b.send(func(_ context.Context, m *Message, n int) Verdict {
			if n == 1 {
				<-release // ignores its context
			}
			return ok
		}, "a", 1)
		b.send(succeed, "b", 2)
		time.Sleep(5500 * time.Millisecond)
		if _, ended := b.final(2); ended {
			t.Error("the only slot was taken, yet the second message ran")
		}
		time.Sleep(time.Second)
		b.wantFinal(2, AckMessage)
		if s := b.g.Status(); s.Stuck != 1 {
			t.Errorf("%d stuck, want 1", s.Stuck)
		}
		time.Sleep(10 * time.Second)
		b.wantFinal(1, AckMessage)
		close(release)
		synctest.Wait()
		if s := b.g.Status(); s.Stuck != 0 {
			t.Errorf("%d stuck after the handler returned", s.Stuck)
		}
		b.close()
	})
}

func TestGroup_outageTripsTheKeyAndDeadLettersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 20, MaxAge: 24 * time.Hour})
		var down atomic.Bool
		down.Store(true)
		handle := func(_ context.Context, m *Message, n int) Verdict {
			if down.Load() {
				return Verdict{Kind: Retry, Err: errDown}
			}
			return ok
		}
		b.send(handle, "k", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		time.Sleep(time.Hour)
		if s := b.g.KeyStates(10); len(s) != 1 || s[0].State != Waiting && s[0].State != Probing {
			t.Errorf("key states %+v", s)
		}
		down.Store(false)
		time.Sleep(20 * time.Minute)
		for seq := range uint64(10) {
			if o := b.wantFinal(seq+1, AckMessage); o.Attempts > 5 {
				t.Errorf("message %d spent %d attempts on the outage", seq+1, o.Attempts)
			}
		}
		if t.Failed() {
			b.log()
		}
		b.close()
	})
}

func TestGroup_outageBehindManyKeysTripsTheRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 20, MaxAge: 24 * time.Hour})
		var down atomic.Bool
		down.Store(true)
		handle := func(_ context.Context, m *Message, n int) Verdict {
			if down.Load() {
				return Verdict{Kind: Retry, Err: errDown}
			}
			return ok
		}
		for seq := range uint64(3000) {
			b.send(handle, fmt.Sprint("k", seq), seq+1)
		}
		time.Sleep(2 * time.Hour)
		if n := len(b.starts); n > 500 {
			t.Errorf("%d starts during the outage", n)
		}
		down.Store(false)
		time.Sleep(time.Hour)
		for seq := range uint64(3000) {
			b.wantFinal(seq+1, AckMessage)
		}
		b.close()
	})
}
