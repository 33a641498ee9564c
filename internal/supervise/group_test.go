package supervise

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

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
		if n := b.keys(); n != 0 {
			t.Errorf("%d keys left", n)
		}
		b.close()
	})
}

func TestGroup_errorRetriesByTheMessagesOwnPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 4, Retry: supervisor.Backoff{Min: time.Second}})
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
		var made int // by one goroutine after the other
		b := newBench(t, Options{
			Retry:  supervisor.Backoff{Min: time.Second},
			Config: supervisor.Config{Restart: supervisor.Backoff{Min: 200 * time.Millisecond}},
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
		if made != 2 || b.allStarts()[1].child != "child-2" {
			t.Errorf("%d children made; second start by %s", made, b.allStarts()[1].child)
		}
		b.close()
	})
}

func TestGroup_goexitFreesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1, Retry: supervisor.Backoff{Min: time.Second}})
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
		b := newBench(t, Options{Concurrency: 1, Timeout: 5 * time.Second, Retry: supervisor.Backoff{Min: time.Second}})
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

func TestGroup_outageBehindManyKeysTripsTheRoute_large(t *testing.T) {
	large(t)
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
		for seq := range uint64(800) {
			b.send(handle, fmt.Sprint("k", seq), seq+1)
		}
		time.Sleep(2 * time.Hour)
		if n := len(b.allStarts()); n > 2800 {
			t.Errorf("%d starts during the outage", n) // each message once, and then one every four seconds
		}
		down.Store(false)
		time.Sleep(time.Hour)
		for seq := range uint64(800) {
			b.wantFinal(seq+1, AckMessage)
		}
		b.close()
	})
}
