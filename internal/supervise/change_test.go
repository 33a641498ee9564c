package supervise

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// hanging is a handler that hangs until its context ends.
func hanging(calls *atomic.Int64) handlerFunc {
	return func(ctx context.Context, _ *Message, _ int) Verdict {
		calls.Add(1)
		<-ctx.Done()
		return failed
	}
}

func TestChange_whatHangsInTheFormerHandlerHoldsItsSlotAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 8, Shared: "old", Timeout: time.Minute}
		b := newBench(t, opts)
		defer b.close()
		var hung atomic.Int64
		ended := time.Duration(0)
		for i, k := range []string{"a", "b", "c", "d"} {
			b.send(hanging(&hung), k, uint64(i+1))
		}
		synctest.Wait()
		opts.Shared = "new"
		b.change(Revision{Options: opts, Ended: func() { ended = time.Since(b.began) }}, "new")
		good := func(context.Context, *Message, int) Verdict { return ok }
		b.send(good, "a", 11, 12)
		b.send(good, "e", 13)
		synctest.Wait()
		if s := b.g.Status(); s.Running != 4 || b.g.Former() != 4 || hung.Load() != 4 {
			t.Errorf("%d run, %d of the former handler", s.Running, b.g.Former())
		}
		for seq := uint64(11); seq <= 13; seq++ {
			if at := b.startsOf(seq); len(at) != 1 || at[0] != 0 {
				t.Errorf("message %d started at %v", seq, at)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if ended != time.Minute {
			t.Errorf("the former handler ended after %v, its runs time out after a minute", ended)
		}
	})
}

func TestChange_anOrderedKeyWaitsForTheFormerHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 8, Shared: "old", Ordered: true, Timeout: 10 * time.Second, Retry: supervisor.Backoff{Min: time.Second, Max: time.Second}}
		b := newBench(t, opts)
		defer b.close()
		b.send(func(ctx context.Context, _ *Message, n int) Verdict {
			if n == 1 {
				<-ctx.Done()
				return failed
			}
			return ok
		}, "a", 1)
		synctest.Wait()
		opts.Shared = "new"
		b.change(Revision{Options: opts, Ended: func() {}}, "new")
		good := func(context.Context, *Message, int) Verdict { return ok }
		b.send(good, "a", 2)
		b.send(good, "b", 3)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := b.startsOf(3); len(got) != 1 || got[0] != 0 {
			t.Errorf("another key started at %v", got)
		}
		if one, two := b.startsOf(1), b.startsOf(2); len(one) != 2 || one[1] != 11*time.Second || len(two) != 1 || two[0] < 11*time.Second {
			t.Errorf("the head started at %v, what is behind it at %v", one, two)
		}
	})
}

func TestChange_interruptedRunsOfTheFormerHandlerSpendNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 4, Shared: "old", Timeout: time.Hour}
		b := newBench(t, opts)
		defer b.close()
		first := func(ignores bool) handlerFunc {
			return func(ctx context.Context, _ *Message, n int) Verdict {
				switch {
				case n > 1:
					return ok
				case ignores:
					time.Sleep(2 * time.Hour)
				default:
					<-ctx.Done()
				}
				return failed
			}
		}
		b.send(first(false), "a", 1)
		b.send(first(true), "b", 2)
		synctest.Wait()
		opts.Shared = "new"
		ended := false
		interrupt := b.change(Revision{Options: opts, Ended: func() { ended = true }}, "new")
		if n := interrupt(); n != 2 {
			t.Errorf("%d are interrupted", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for seq := uint64(1); seq <= 2; seq++ {
			var attempts []int
			for _, s := range b.allStarts() {
				if s.seq == seq {
					attempts = append(attempts, s.attempt)
				}
			}
			if len(attempts) != 2 || attempts[1] != 1 {
				t.Errorf("message %d: attempts %v", seq, attempts)
			}
		}
		if s := b.g.Status(); !ended || s.Running != 0 || s.Stuck != 1 {
			t.Errorf("ended: %v, %d run, %d are stuck", ended, s.Running, s.Stuck)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestChange_boundsAndTimeoutCountFromTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 6, Shared: "h", Timeout: 10 * time.Second, MaxAttempts: 1, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}}}
		b := newBench(t, opts)
		defer b.close()
		var left []time.Duration
		hang := func(ctx context.Context, _ *Message, _ int) Verdict {
			began := time.Now()
			<-ctx.Done()
			b.mu.Lock()
			left = append(left, time.Since(began))
			b.mu.Unlock()
			return failed
		}
		for i := range 12 {
			b.send(hang, string(rune('a'+i)), uint64(i+1))
		}
		time.Sleep(time.Second)
		opts.Concurrency, opts.Timeout = 2, 3*time.Second
		b.change(Revision{Options: opts}, "")
		if n := b.g.Status().Running; n != 6 {
			t.Fatalf("%d run", n)
		}
		time.Sleep(9*time.Second + time.Millisecond)
		synctest.Wait()
		b.settle()
		if n := b.g.Status().Running; n != 2 {
			t.Errorf("%d run, two may", n)
		}
		opts.Concurrency = 4
		b.change(Revision{Options: opts}, "")
		synctest.Wait()
		if n := b.g.Status().Running; n != 4 {
			t.Errorf("%d run, four may", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, d := range left {
			if want := map[bool]time.Duration{true: 10 * time.Second, false: 3 * time.Second}[i < 6]; d != want {
				t.Errorf("run %d had %v, want %v", i, d, want)
			}
		}
	})
}

// A shorter timeout ends runs before those that began with the longer one.
func TestChange_aShorterTimeoutEndsBeforeALongerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 4, Shared: "h", Timeout: time.Hour, MaxAttempts: 1}
		b := newBench(t, opts)
		defer b.close()
		var calls atomic.Int64
		b.send(hanging(&calls), "a", 1)
		synctest.Wait()
		opts.Timeout = time.Second
		b.change(Revision{Options: opts}, "")
		b.send(hanging(&calls), "b", 2)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, ended := b.final(2); !ended {
			t.Error("the second did not time out")
		}
		if _, ended := b.final(1); ended {
			t.Error("the first did")
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestChange_aKeyThatWaitsProbesTheNewHandlerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		restart := supervisor.Backoff{Min: time.Hour, Max: time.Hour, Jitter: new(0.0)}
		opts := Options{Concurrency: 4, Shared: "old", Config: supervisor.Config{TripAfter: new(1), Restart: restart}, MaxAttempts: 5}
		b := newBench(t, opts)
		defer b.close()
		b.send(func(context.Context, *Message, int) Verdict {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.child == "" {
				return failed
			}
			return ok
		}, "a", 1, 2, 3)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := b.g.Status().Keys[Waiting]; n != 1 {
			t.Fatalf("%d keys wait", n)
		}
		opts.Shared = "new"
		b.change(Revision{Options: opts, Ended: func() {}}, "new")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for seq := uint64(1); seq <= 3; seq++ {
			if o, _ := b.final(seq); o.Action != AckMessage {
				t.Errorf("message %d: %+v", seq, o)
			}
		}
	})
}

func TestChange_aSmallerStashPutsTheOverflowAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 4, Shared: "h", Config: supervisor.Config{TripAfter: new(1), Restart: supervisor.Backoff{Min: time.Hour, Max: time.Hour}}}
		b := newBench(t, opts)
		defer b.close()
		var up atomic.Bool
		handle := func(context.Context, *Message, int) Verdict {
			if !up.Load() {
				return failed
			}
			return ok
		}
		b.send(handle, "a", 1)
		synctest.Wait()
		b.send(handle, "a", seq(2, 11)...)
		if n := b.g.Status().StashMessages; n != 10 {
			t.Fatalf("%d are held", n)
		}
		opts.StashMessages = 3
		b.change(Revision{Options: opts}, "")
		synctest.Wait()
		if s := b.g.Status(); s.StashMessages != 3 || s.Aside != 7 {
			t.Errorf("%d are held, %d aside", s.StashMessages, s.Aside)
		}
		up.Store(true)
		opts.StashMessages = 100
		b.change(Revision{Options: opts}, "")
		b.g.EndWaits(AtOnce)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := b.g.Status(); s.Aside > 0 || s.StashMessages > 0 {
			t.Errorf("%+v", s)
		}
	})
}
