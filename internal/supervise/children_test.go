package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// family makes children that are told apart, and notes which were stopped.
type family struct {
	mu            sync.Mutex
	made, stopped map[string]int
}

func newFamily(opts *Options) *family {
	f := &family{made: map[string]int{}, stopped: map[string]int{}}
	opts.New = func(_ context.Context, key string) (any, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.made[key]++
		return fmt.Sprint(key, "-", f.made[key]), nil
	}
	opts.Stop = func(_ context.Context, child any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stopped[child.(string)]++
	}
	return f
}

func (f *family) want(t *testing.T, made, stopped string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := fmt.Sprint(f.made); got != "map["+made+"]" {
		t.Errorf("made %v, want %v", got, made)
	}
	if got := fmt.Sprint(f.stopped); got != "map["+stopped+"]" {
		t.Errorf("stopped %v, want %v", got, stopped)
	}
}

func TestChildren_oneOfEachKeyStoppedWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{}
		f := newFamily(&opts)
		b := newBench(t, opts)
		b.send(succeed, "a", 1, 2, 3)
		b.send(succeed, "b", 4)
		time.Sleep(9 * time.Second)
		b.send(succeed, "a", 5)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		f.want(t, "a:1 b:1", "b-1:1")
		time.Sleep(time.Minute)
		synctest.Wait()
		f.want(t, "a:1 b:1", "a-1:1 b-1:1")
		if s := b.g.Status(); s.Children != 0 || len(s.Keys) != 0 {
			t.Errorf("status %+v", s)
		}
		b.close()
	})
}

func TestChildren_aFreshOneAfterAStopAndTheOldOneIsStoppedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{}
		f := newFamily(&opts)
		b := newBench(t, opts)
		b.send(takes(2*time.Second), "a", 1)
		b.send(first(1, panicking, succeed), "a", 2)
		time.Sleep(time.Second)
		f.want(t, "a:2", "") // a run of the old one has not returned
		b.wantFinal(2, AckMessage)
		time.Sleep(5 * time.Second)
		f.want(t, "a:2", "a-1:1")
		b.close()
		f.want(t, "a:2", "a-1:1 a-2:1")
	})
}

// More keys than there may be children: one was stopped for the next before it had had a message, which was then stopped
// for the first one, and so on; and where all were busy, more were made.
func TestChildren_regressionTheirBoundHoldsAndAllKeysGetTheirTurn(t *testing.T) {
	for _, bound := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := Options{Concurrency: 4, Config: supervisor.Config{MaxChildren: bound, RouteTrip: supervisor.RouteTrip{Of: new(0)}}}
				newFamily(&opts)
				b := newBench(t, opts) // which checks the bound
				for k := range uint64(20) {
					b.send(first(1, panicking, takes(10*time.Millisecond)), fmt.Sprint("k", k), seq(k*10+1, k*10+5)...)
				}
				time.Sleep(time.Hour)
				for k := range uint64(20) {
					for s := range uint64(5) {
						b.wantFinal(k*10+s+1, AckMessage)
					}
				}
				b.close()
			})
		})
	}
}

// One look for what may start made a child for every key at once, beyond the slots that they take.
func TestChildren_regressionMakingThemTakesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		making, most := 0, 0
		var b *bench
		b = newBench(t, Options{Concurrency: 4, New: func(context.Context, string) (any, error) {
			b.mu.Lock()
			making++
			most = max(most, making)
			b.mu.Unlock()
			time.Sleep(time.Second)
			b.mu.Lock()
			making--
			b.mu.Unlock()
			return nil, nil
		}})
		for k := range uint64(40) {
			b.send(succeed, fmt.Sprint("k", k), k+1)
		}
		time.Sleep(time.Minute)
		b.close()
		if most != 4 {
			t.Errorf("%d were made at once with 4 slots", most)
		}
	})
}

func TestChildren_aFactoryThatFailsIsAStopAndSpendsNoAttempt(t *testing.T) {
	for name, fails := range map[string]func() (any, error){
		"error":  func() (any, error) { return nil, errDown },
		"panic":  func() (any, error) { panic("no child") },
		"goexit": func() (any, error) { runtime.Goexit(); return nil, nil },
		"hang":   func() (any, error) { time.Sleep(40 * time.Second); return "late", nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tries, stopped atomic.Int64
				b := newBench(t, Options{
					MaxAttempts: 1, Timeout: 5 * time.Second,
					New: func(_ context.Context, key string) (any, error) {
						if tries.Add(1) <= 3 {
							return fails()
						}
						return key, nil
					},
					Stop: func(context.Context, any) { stopped.Add(1) },
				})
				b.send(succeed, "k", 1)
				time.Sleep(3 * time.Minute)
				b.wantFinal(1, AckMessage)
				want := []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}
				if got := b.delays("k"); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("waits %v, want %v", got, want)
				}
				if late := map[bool]int64{true: 3}[name == "hang"]; stopped.Load() != 1+late {
					t.Errorf("%d children were stopped, %d came late", stopped.Load(), late)
				}
				b.close()
			})
		})
	}
}

// A factory that ignores its context had its slot for ever.
func TestChildren_regressionAHangingFactoryLosesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, Options{
			Concurrency: 1, Timeout: 5 * time.Second, Config: supervisor.Config{MaxStuck: 2},
			New: func(_ context.Context, key string) (any, error) {
				if key == "bad" {
					<-release
				}
				return nil, nil
			},
		})
		b.send(succeed, "bad", 1)
		b.send(succeed, "good", 2)
		time.Sleep(6*time.Second + time.Millisecond)
		b.wantFinal(2, AckMessage)
		if s := b.g.Status(); s.Stuck != 1 || s.Counts.Hangs != 1 {
			t.Errorf("status %+v", s)
		}
		time.Sleep(time.Minute)
		b.mu.Lock()
		if !errors.Is(b.g.turn.route.stopped, b.failed) || b.failed == nil {
			t.Errorf("three factories hang, max_stuck is 2: %v", b.failed)
		}
		b.mu.Unlock()
		close(release)
		b.close()
	})
}

// With all children in use, messages that were turned away kept an idle child alive for ever, in the place of the one whose
// message the route wanted to probe with.
func TestChildren_regressionTurnedAwayMessagesKeepNoIdleChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Config: supervisor.Config{Forward: supervisor.ForwardGiveBack, MaxChildren: 1}, StashMessages: 1, Concurrency: 2,
			New: func(context.Context, string) (any, error) { time.Sleep(500 * time.Millisecond); return "child", nil },
		})
		b.redeliver = false // the first message goes to another instance
		b.send(func(context.Context, *Message, int) Verdict {
			return Verdict{Kind: Retry, Err: errDown, Delay: time.Second, Pause: true}
		}, "k0", 1)
		time.Sleep(1600 * time.Millisecond) // the route probes
		b.mu.Lock()
		b.redeliver = true
		b.mu.Unlock()
		b.send(succeed, "k1", 2) // the probe; its child is being made
		time.Sleep(100 * time.Millisecond)
		m := &Message{Key: "k2", Sequence: 3, Size: 100, Due: time.Now().Add(time.Second)}
		b.mu.Lock()
		b.add(m, succeed)
		b.mu.Unlock()
		b.g.Deliver(m) // came back early: is held, and evicts k1's message
		time.Sleep(2 * time.Second)
		b.send(succeed, "k1", 4)
		time.Sleep(10 * time.Minute)
		b.wantFinal(3, AckMessage)
		b.close()
	})
}

// A route that probed with a message of one key waited for ever for the child of another key that had messages, too: while a route does not flow, no key
// but the one that is asked has a turn, in which it would give its idle child up.
func TestChildren_regressionAProbeGetsTheChildOfAKeyWithMessages_large(t *testing.T) {
	large(t)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		slow, pause := time.Duration(1+r.IntN(2000))*time.Millisecond, time.Duration(1+r.IntN(5))*time.Second
		opts := Options{
			Config: supervisor.Config{Forward: supervisor.ForwardGiveBack, MaxChildren: 1 + r.IntN(2), RetryAfter: supervisor.ScopeRoute, ChildIdle: time.Second}, StashMessages: 1 + r.IntN(4),
			Concurrency: 1 + r.IntN(4),
		}
		keys, down := 2+r.IntN(3), time.Duration(1+r.IntN(600))*time.Second
		synctest.Test(t, func(t *testing.T) {
			var births atomic.Int64
			opts.New = func(context.Context, string) (any, error) {
				switch births.Add(1) % 3 {
				case 1:
					runtime.Goexit()
				case 2:
					return nil, errors.New("no child")
				}
				time.Sleep(slow)
				return "child", nil
			}
			b := newBench(t, opts)
			healed := time.Now().Add(down)
			handle := func(context.Context, *Message, int) Verdict {
				if time.Now().Before(healed) {
					return Verdict{Kind: Retry, Err: errDown, Delay: pause, Pause: true}
				}
				return ok
			}
			for n := range uint64(12) {
				b.send(handle, fmt.Sprint("k", n%uint64(keys)), n+1)
				time.Sleep(time.Duration(r.IntN(20)) * time.Second)
			}
			time.Sleep(24 * time.Hour)
			if s := b.g.Status(); s.Held > 0 || s.Aside > 0 || len(s.Keys) > 0 {
				t.Errorf("seed %d: %+v", seed, s)
			}
			b.close()
		})
	}
}

// Keys that may not all have a child ended each other's while it waited for its first message, which came and went ten times a second for ever: the stash had no
// room for it, so it was aside, was called back before the grace was over, and child_idle was over before it could be taken.
func TestChildren_regressionAFreshChildIsKeptUntilItsFirstMessageComes(t *testing.T) {
	now := time.Now()
	grace := now.Add(3 * time.Second)
	fresh, asking := &probing{grace: grace}, &probing{grace: grace, probe: new(run)}
	for name, tt := range map[string]struct {
		state    keyState
		messages int
		want     time.Time
	}{
		"its message is here": {fresh, 1, grace},
		"its message is away": {fresh, 0, grace.Add(calledWithin)},
		"it is asked":         {asking, 0, time.Time{}},
		"it flows":            {new(flowing), 0, time.Time{}},
	} {
		k := &key{state: tt.state}
		k.held.n = tt.messages
		if got := k.firstTurn(); !got.Equal(tt.want) {
			t.Errorf("%s: the child is kept until %v, want %v", name, got, tt.want)
		}
	}
	waiting := turn{moment: moment{now: now, cfg: &supervisor.Config{ForwardDuringGrace: new(false)}}}
	if fresh.wants(&waiting) {
		t.Error("a message is wanted before the grace is over")
	}
	waiting.now = grace
	if !fresh.wants(&waiting) {
		t.Error("no message is wanted when the grace is over")
	}
}
