package supervise

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"

	"github.com/relaymq/relay/internal/race"
)

func ignoring(until <-chan struct{}) handlerFunc {
	return func(context.Context, *Message, int) Verdict { <-until; return ok }
}

func TestHang_pastTheTimeoutAndASecondIsAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{Timeout: 5 * time.Second})
		b.send(first(1, ignoring(release), succeed), "k", 1)
		time.Sleep(6*time.Second - 1)
		b.wantState("k", Flowing)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		b.wantState("k", Waiting)
		if o := b.wantLast(1, RetryLater); o.Attempts != 1 {
			t.Errorf("outcome %+v", o)
		}
		time.Sleep(time.Minute)
		b.wantFinal(1, AckMessage)
		close(release)
		b.close()
	})
}

func TestHang_oneThatObeysInTimeIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Timeout: 5 * time.Second})
		b.send(func(ctx context.Context, _ *Message, _ int) Verdict {
			<-ctx.Done()
			time.Sleep(900 * time.Millisecond)
			return Verdict{Kind: Retry, Err: ctx.Err()}
		}, "k", 1)
		time.Sleep(6 * time.Second)
		b.wantState("k", Flowing)
		b.close()
	})
}

func TestHang_moreThanMaxStuckStopTheRouteUntilOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{Concurrency: 4, Timeout: 5 * time.Second, Config: supervisor.Config{MaxStuck: 2, RouteTrip: supervisor.RouteTrip{Of: new(0)}}})
		b.redeliver = false
		b.send(ignoring(release), "a", 1)
		b.send(ignoring(release), "b", 2)
		time.Sleep(10 * time.Second)
		if b.g.Status().Failed != nil {
			t.Error("stopped at max_stuck, not above it")
		}
		b.send(ignoring(release), "c", 3)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if s := b.g.Status(); s.Failed == nil || s.Stuck != 3 || b.failed == nil {
			t.Errorf("status %+v, told %v", s, b.failed)
		}
		b.send(succeed, "e", 5)
		time.Sleep(10 * time.Second)
		b.wantFinal(5, AckMessage)
		if s := b.g.Status(); s.Failed != nil || s.State != Flowing || b.failed != nil {
			t.Errorf("after a success: status %+v, told %v", s, b.failed)
		}
		close(release)
		b.close()
	})
}

// Each probe of a route whose handlers do not return may leave another goroutine behind. At twice max_stuck that ends.
func TestHang_probesEndAtTwiceMaxStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{Concurrency: 2, Timeout: time.Second, MaxAttempts: 100, Config: supervisor.Config{MaxStuck: 2, Restart: supervisor.Backoff{Max: time.Second}}})
		for s := range uint64(20) {
			b.send(func(ctx context.Context, m *Message, _ int) Verdict {
				<-release
				return ok
			}, "k", s+1)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := b.g.Status(); s.Failed == nil || s.Stuck > 6 {
			t.Errorf("status %+v", s)
		}
		close(release)
		time.Sleep(time.Hour)
		for s := range uint64(20) {
			b.wantFinal(s+1, AckMessage)
		}
		b.close()
	})
}

// An ordered head that hung was kept, and started again while its goroutine still used its bytes.
func TestHang_regressionAnOrderedHeadComesAgainWithItsOwnBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{Ordered: true, Timeout: 5 * time.Second, Retry: supervisor.Backoff{Min: time.Second}})
		hung := map[*Message]bool{}
		b.onStart = func(m *Message, _ int) {
			if hung[m] {
				t.Error("the same delivery started again")
			}
			hung[m] = m.Sequence == 1
		}
		b.send(first(1, ignoring(release), succeed), "k", 1)
		b.send(succeed, "k", 2)
		time.Sleep(time.Minute)
		b.wantOrder(1, 1, 2)
		close(release)
		b.close()
	})
}

// A process that was stopped for longer than timeout and grace took all its handlers for hung the moment it went on, and
// with more than max_stuck of them stopped the route for good.
func TestHang_regressionAPausedProcessGivesItsHandlersTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8, Timeout: 5 * time.Second, Config: supervisor.Config{MaxStuck: 2, TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}}})
		for s := range uint64(8) {
			b.send(first(1, func(ctx context.Context, _ *Message, _ int) Verdict {
				<-ctx.Done()
				time.Sleep(900 * time.Millisecond)
				return Verdict{Kind: Retry, Err: ctx.Err()}
			}, succeed), fmt.Sprint("k", s), s+1)
		}
		synctest.Wait()
		b.g.turn.alarm.timer.Stop() // as SIGSTOP does
		time.Sleep(time.Minute)
		b.g.tick()
		time.Sleep(time.Hour)
		if s := b.g.Status(); s.Failed != nil || s.Counts.Hangs != 0 {
			t.Errorf("status %+v", s)
		}
		for s := range uint64(8) {
			b.wantFinal(s+1, AckMessage)
		}
		b.close()
	})
}

func TestHang_regressionAPausedProcessGivesItsFactoriesTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := true
		b := newBench(t, Options{Timeout: 5 * time.Second, New: func(ctx context.Context, _ string) (any, error) {
			if slow {
				slow = false
				<-ctx.Done()
				time.Sleep(900 * time.Millisecond)
				return nil, ctx.Err()
			}
			return nil, nil
		}})
		b.send(succeed, "k", 1)
		synctest.Wait()
		b.g.turn.alarm.timer.Stop()
		time.Sleep(5*time.Second - time.Millisecond)
		turn := b.g.lock()
		turn.slots.births[0].deadline = time.Now().Add(-time.Minute) // its own timer cannot be stopped
		turn.unlock()
		b.g.tick()
		time.Sleep(time.Hour)
		if s := b.g.Status(); s.Counts.Hangs != 0 {
			t.Errorf("status %+v", s)
		}
		b.wantFinal(1, AckMessage)
		b.close()
	})
}

func TestHang_100000PanicsLeaveNoGoroutine(t *testing.T) {
	// Under the race detector a panic's stack takes ten times as long, and so many timers in one bubble now and then crash the
	// detector itself (perhaps golang/go#78156).
	panics := uint64(100_000)
	if race.Enabled {
		panics = 2000
	}
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		b := newBench(t, Options{
			Concurrency: 8, MaxAttempts: int(panics / 1000), Retry: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Millisecond},
			Config: supervisor.Config{Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Millisecond}, DrainGrace: new(time.Duration(0)), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
		})
		for s := range uint64(1000) {
			b.send(panicking, fmt.Sprint("k", s%50), s+1)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := b.g.Status().Counts.Panics; n != panics {
			t.Errorf("%d panics", n)
		}
		if n := runtime.NumGoroutine(); n > before+5 { // the Go runtime starts some of its own
			t.Errorf("%d goroutines, %d before", n, before)
		}
		if n := b.keys(); n != 0 {
			t.Errorf("%d keys left", n)
		}
		b.close()
	})
}

// The runs that a stop cancels counted as the key's own: one that did not heed it had the slot of the probe until it was
// given up, a second after its timeout.
func TestHang_regressionCancelledRunsDoNotHoldUpTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{Concurrency: 8, Timeout: 30 * time.Second})
		b.send(first(1, ignoring(release), succeed), "k", 1, 2)
		synctest.Wait()
		b.send(first(1, panicking, succeed), "k", 3)
		synctest.Wait()
		b.wantState("k", Waiting)
		b.send(takes(time.Second), "k", seq(4, 20)...)
		time.Sleep(10 * time.Second)
		b.wantState("k", Flowing)
		for s := uint64(3); s <= 20; s++ {
			b.wantFinal(s, AckMessage)
		}
		time.Sleep(time.Minute)
		for s := uint64(1); s <= 2; s++ { // they come again with their own bytes
			b.wantFinal(s, AckMessage)
		}
		close(release)
		b.close()
	})
}

// A message whose run in the fallback was cancelled, and whose handler did not return, was kept, and started again while that handler still used its bytes.
func TestHang_regressionWhatTheFallbackStillUsesComesAgainWithItsOwnBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{
			Config: supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: time.Hour, Max: time.Hour}},
			Retry:  supervisor.Backoff{Min: time.Hour, Max: time.Hour}, Timeout: 5 * time.Second, Fallback: &Fallback{Waiting: true},
		})
		var mu sync.Mutex
		hung := map[*Message]bool{}
		b.substitute.handle = func(_ context.Context, m *Message, n int) Verdict {
			mu.Lock()
			again := hung[m]
			hung[m] = true
			mu.Unlock()
			switch {
			case again:
				t.Errorf("the same delivery of message %d started again", m.Sequence)
			case m.Sequence == 2 && n == 1:
				time.Sleep(time.Second)
				panic("boom") // the runs beside it are cancelled
			case m.Sequence == 3 && n == 1:
				<-release
			}
			return ok
		}
		b.send(func(context.Context, *Message, int) Verdict { return failed }, "k", 1)
		time.Sleep(time.Millisecond)
		b.send(succeed, "k", 2, 3)
		time.Sleep(time.Minute)
		b.wantFinal(3, AckMessage)
		close(release)
		b.close()
	})
}
