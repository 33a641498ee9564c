package supervise

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// sendSpent delivers a message whose attempts are spent.
func (b *bench) sendSpent(key string, seq uint64) {
	m := &Message{Key: key, Sequence: seq, Size: 100, Attempts: b.g.opts.MaxAttempts, Returns: 1}
	b.mu.Lock()
	b.add(m, func(context.Context, *Message, int) Verdict { return failed })
	b.mu.Unlock()
	b.g.Deliver(m)
}

// While other keys had all slots, each message of a key that tripped went to the fallback, and none was left to probe it with.
func TestFallback_regressionABusyRouteProbesItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Concurrency: 2, Config: supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}}, Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour},
			Fallback: &Fallback{Waiting: true},
		})
		defer b.close()
		b.substitute.handle = func(context.Context, *Message, int) Verdict { return ok }
		b.send(func(context.Context, *Message, int) Verdict { return failed }, "k", 1)
		time.Sleep(10 * time.Millisecond)
		busy := func(context.Context, *Message, int) Verdict { time.Sleep(time.Second); return ok }
		b.send(busy, "x", seq(1000, 1199)...)
		b.send(busy, "y", seq(2000, 2199)...)
		time.Sleep(10 * time.Second)
		for n := uint64(10); n < 100; n++ {
			b.send(func(context.Context, *Message, int) Verdict { return ok }, "k", n)
			time.Sleep(110 * time.Millisecond)
		}
		b.wantState("k", Flowing)
	})
}

// A handler of the fallback that ignored its timeout was not counted, and a suspect was charged with what it did.
func TestFallback_regressionItsStuckHandlersAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Config: supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: time.Hour, Max: time.Hour}}, Timeout: time.Second,
			Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}, Fallback: &Fallback{Waiting: true}, Stuck: func() int { return 10 },
		})
		defer b.close()
		release := make(chan struct{})
		b.substitute.handle = func(context.Context, *Message, int) Verdict { <-release; return ok }
		b.send(func(context.Context, *Message, int) Verdict { return failed }, "k", 1)
		time.Sleep(time.Millisecond)
		b.send(func(context.Context, *Message, int) Verdict { return failed }, "k", 2)
		time.Sleep(5 * time.Second)
		if running, stuck := b.g.Busy(); running != 0 || stuck != 11 {
			t.Errorf("%d run, %d are stuck", running, stuck)
		}
		close(release)
		synctest.Wait()
		if _, stuck := b.g.Busy(); stuck != 10 {
			t.Errorf("%d are stuck after it returned", stuck)
		}
	})
}

// Spent messages of a key that an operator had suspended, and of a route that believes no verdict, went to the fallback.
func TestFallback_regressionWhatIsSuspendedHasNone(t *testing.T) {
	for _, scope := range []string{"key", "route"} {
		t.Run(scope, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}, MaxAttempts: 3, Fallback: &Fallback{Exhausted: true}})
				defer b.close()
				b.substitute.handle = func(context.Context, *Message, int) Verdict { return ok }
				under := func(do func(t *turn)) {
					t := b.g.lock()
					do(t)
					t.unlock()
				}
				if scope == "key" {
					b.g.SuspendKey("k", "maintenance")
				} else {
					under(func(t *turn) { t.route.suspend(t, "all is dead") })
				}
				b.sendSpent("k", 1)
				time.Sleep(10 * time.Minute)
				if got := b.substituted(); len(got) > 0 {
					t.Errorf("the fallback got %v", got)
				}
				if _, ended := b.final(1); ended {
					t.Error("it has ended")
				}
				if scope == "key" {
					b.g.ResumeKey("k")
				} else {
					under(func(t *turn) { t.route.resume(t, AtOnce) })
				}
				time.Sleep(2 * time.Hour)
				if o := b.wantFinal(1, AckMessage); !o.Fallback {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// Messages that wait had all slots of the fallback, and spent ones came in vain until there were none of the others.
func TestFallback_regressionSpentMessagesAreNotStarved(t *testing.T) {
	for _, concurrency := range []int{1, 2, 8} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Options{
				Config:      supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: 24 * time.Hour, Max: 24 * time.Hour}},
				MaxAttempts: 5, Retry: supervisor.Backoff{Min: 24 * time.Hour, Max: 24 * time.Hour},
				Fallback: &Fallback{Waiting: true, Exhausted: true, Concurrency: concurrency},
			})
			defer b.close()
			b.substitute.handle = func(context.Context, *Message, int) Verdict { time.Sleep(time.Second); return ok }
			main := func(context.Context, *Message, int) Verdict { return failed }
			n := uint64(0)
			for _, k := range []string{"j", "k"} {
				b.send(main, k, n+1)
				time.Sleep(10 * time.Millisecond)
				b.send(main, k, seq(n+2, n+400)...)
				n += 1000
			}
			b.sendSpent("k", 5000)
			time.Sleep(40 * time.Second)
			if o := b.wantFinal(5000, AckMessage); !o.Fallback {
				t.Errorf("%+v", o)
			}
			time.Sleep(time.Hour) // the slot is not kept for ever
			if got := b.substituted(); len(got) < 790 {
				t.Errorf("with %d slots the fallback got %d messages", concurrency, len(got))
			}
		})
	}
}

// A handler of the fallback that returned when the drain had given it up wrote what was being read.
func TestFallback_regressionItReturnsAtTheEndOfTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Config: supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: time.Hour, Max: time.Hour}},
			Retry:  supervisor.Backoff{Min: time.Hour, Max: time.Hour}, Fallback: &Fallback{Waiting: true},
		})
		var returned atomic.Int32
		b.substitute.handle = func(ctx context.Context, _ *Message, _ int) Verdict {
			<-ctx.Done()           // the drain is over
			time.Sleep(closeGrace) // and this is when it is given up
			returned.Add(1)
			return Verdict{Kind: Lost, Gone: true}
		}
		main := func(context.Context, *Message, int) Verdict { return failed }
		b.send(main, "k", 1)
		time.Sleep(time.Millisecond)
		b.send(main, "k", seq(2, 9)...)
		time.Sleep(time.Millisecond)
		b.close()
		if returned.Load() != 8 {
			t.Errorf("%d returned", returned.Load())
		}
	})
}

// When the fallback's own key waited, all messages of the key were handed over and came back, each within the return of the other.
func TestFallback_regressionAKeyThatWaitsThereToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Config: supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: 24 * time.Hour, Max: 24 * time.Hour}},
			Retry:  supervisor.Backoff{Min: time.Second, Max: time.Second}, Fallback: &Fallback{Waiting: true, Concurrency: 2},
		})
		defer b.close()
		broken := true // under the bench's lock
		b.substitute.handle = func(context.Context, *Message, int) Verdict {
			b.mu.Lock()
			defer b.mu.Unlock()
			if broken {
				broken = false
				panic("boom")
			}
			return ok
		}
		main := func(context.Context, *Message, int) Verdict { return failed }
		b.send(main, "k", 1)
		time.Sleep(time.Millisecond)
		b.send(main, "k", seq(2, 500)...)
		synctest.Wait()
		refused := 0
		turn := b.g.lock()
		for _, line := range []*list[Message]{&turn.keys["k"].held, &turn.keys["k"].later} {
			for m := range line.all() {
				if m.refused != nil {
					refused++
				}
			}
		}
		turn.unlock()
		if refused == 0 || refused > 10 {
			t.Errorf("%d messages came back at once", refused)
		}
		time.Sleep(10 * time.Minute)
		for n := uint64(1); n <= 500; n++ {
			b.wantFinal(n, AckMessage)
		}
	})
}
