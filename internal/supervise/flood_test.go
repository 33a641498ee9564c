package supervise

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"

	"pgregory.net/rapid"
)

var guarded = supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(50)}}

func deadly(context.Context, *Message, int) Verdict { return Verdict{Kind: Dead, Err: errDown} }

func (b *bench) deadLetters() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, os := range b.outcomes {
		for _, o := range os {
			if o.Action == DeadLetter {
				n++
			}
		}
	}
	return n
}

func TestFlood_needsNearlyAllOverThreeKeysIfThereAre(t *testing.T) {
	config := guarded.WithDefaults()
	for _, tt := range []struct {
		what       string
		keys, dead int // of each ten answers
		want       bool
	}{
		{"all dead, of many keys", 10, 10, true},
		{"all dead, of three keys", 3, 10, true},
		{"all dead, of two keys, and there are others", 2, 9, false},
		{"all dead, of two keys, and there are no others", 2, 10, true},
		{"all dead, of the only key", 1, 10, true},
		{"nine of ten dead, as ever", 10, 9, false},
		{"eight of ten dead", 10, 8, false},
	} {
		f := newFlood(config)
		trips := false
		for i := range 1000 {
			if i%10 < tt.dead {
				trips = f.died(fmt.Sprint(i%tt.keys), time.Time{}, time.Time{}) || trips
			} else {
				f.succeeded(fmt.Sprint("good", i%30), time.Time{}, time.Time{})
			}
		}
		if trips != tt.want {
			t.Errorf("%s: suspended %v, want %v", tt.what, trips, tt.want)
		}
	}
}

// However seldom successes came before, and whatever ran when the endpoint broke, at most as many are dead after the last success
// as dead_trip says: of three keys or more, or of all that there are; and never fewer than its share.
func TestFlood_believesNoMoreThanItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.IntRange(1, 60).Draw(t, "of")
		f := newFlood(supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(of), Share: rapid.Float64Range(0.1, 1).Draw(t, "share")}}.WithDefaults())
		now, row, keys := time.Unix(0, 0), 0, map[string]bool{}
		step := func(dead bool, key string) {
			if now = now.Add(time.Second); !dead {
				f.succeeded(key, now, now)
				row, keys = 0, map[string]bool{}
				return
			}
			row, keys[key] = row+1, true
			trips := f.died(key, now, now)
			if need := min(deadTripKeys, f.lately.n()); !trips && row >= of && len(keys) >= need || trips && (len(keys) < need || f.deads < f.need) {
				t.Fatalf("%d dead in a row of %d keys, %d of the last %d: suspended %v", row, len(keys), f.deads, len(f.last), trips)
			}
			if trips {
				f.clear()
				f.succeeded(key, now.Add(time.Second), now)
				row, keys = 0, map[string]bool{}
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "spells") {
			good, n := rapid.IntRange(1, 300).Draw(t, "one success in"), rapid.IntRange(1, 200).Draw(t, "for")
			of := rapid.IntRange(1, 5).Draw(t, "keys")
			for i := range n {
				step((i+1)%good != 0, fmt.Sprint(i%of))
			}
		}
	})
}

// An endpoint that answers everything with dead, as one does that was replaced by an error page, costs no more than 50 dead
// letters, whatever arrives and however many are in flight. Its messages are all handled when it works again.
func TestFlood_aBrokenEndpointCostsAtMostFiftyDeadLetters(t *testing.T) {
	for _, order := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Concurrency: 200, Ordered: order, Config: guarded})
				healthy := false
				endpoint := func(ctx context.Context, m *Message, n int) Verdict {
					time.Sleep(time.Second) // all are in flight before the first one is answered
					b.mu.Lock()
					defer b.mu.Unlock()
					if healthy {
						return ok
					}
					return Verdict{Kind: Dead, Err: errDown}
				}
				for i := range 300 {
					b.send(endpoint, fmt.Sprint("key ", i), uint64(i+1))
				}
				time.Sleep(10 * time.Minute)
				s := b.g.Status()
				if n := b.deadLetters(); n > 50 || n < 45 || s.State != Suspended {
					t.Errorf("%d dead letters, the route is %v: %s", n, s.State, s.Why)
				}
				// It asks by itself, at a pace, and trials ask too. None of that costs a dead letter.
				before, asked := b.deadLetters(), len(b.allStarts())
				time.Sleep(10 * time.Minute)
				if n := len(b.allStarts()) - asked; n < 5 || n > 100*600/5 {
					t.Errorf("it was asked %d times in ten minutes", n)
				}
				for range 3 {
					if was := b.g.EndWaits(Trial); was.Route != Suspended {
						t.Errorf("it was %v", was.Route)
					}
					time.Sleep(time.Minute)
				}
				if s := b.g.Status(); s.State != Suspended || b.deadLetters() != before {
					t.Errorf("after trials the route is %v, with %d dead letters more", s.State, b.deadLetters()-before)
				}
				b.mu.Lock()
				healthy = true
				b.mu.Unlock()
				time.Sleep(2 * time.Hour)
				if s := b.g.Status(); s.State != Flowing || b.deadLetters() != before {
					t.Errorf("after it was mended the route is %v, with %d dead letters more", s.State, b.deadLetters()-before)
				}
				for i := range 300 {
					if o, ended := b.final(uint64(i + 1)); !ended {
						t.Errorf("message %d is not done: %+v", i+1, o)
					}
				}
				b.close()
			})
		})
	}
}

func TestFlood_oneBadProducerAmongHealthyKeysSuspendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: guarded})
		for i := range 2000 {
			b.send(deadly, "bad", uint64(2*i+1))
			if i%200 == 0 {
				b.send(succeed, fmt.Sprint("good ", i), uint64(2*i+2))
			}
		}
		time.Sleep(time.Hour)
		if s := b.g.Status(); s.State != Flowing || b.deadLetters() != 2000 {
			t.Errorf("the route is %v, with %d dead letters", s.State, b.deadLetters())
		}
		b.close()
	})
}

// On a route with one key, 3,000 of 3,000 messages were dead-lettered: the rule of three keys never applied.
func TestFlood_regressionARouteWithOneKeyIsGuardedToo_large(t *testing.T) {
	large(t)
	for _, keys := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Options{Config: guarded})
			for i := range uint64(1100) { // more than the stash holds: the others are given back and delivered anew
				b.send(deadly, fmt.Sprint("key ", i%uint64(keys)), i+1)
			}
			time.Sleep(10 * time.Minute)
			if n := b.deadLetters(); n > 50 || b.g.Status().State != Suspended {
				t.Errorf("%d keys: %d dead letters, the route is %v", keys, n, b.g.Status().State)
			}
			b.close()
		})
	}
}

func TestFlood_resumeGoesOnAndIsSuspendedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}})
		for i := range 100 {
			b.send(deadly, fmt.Sprint("key ", i), uint64(i+1))
		}
		time.Sleep(time.Minute)
		first := b.deadLetters()
		b.g.EndWaits(AtOnce)
		time.Sleep(time.Hour)
		if n := b.deadLetters() - first; first > 10 || n == 0 || n > 10 || b.g.Status().State != Suspended {
			t.Errorf("%d dead letters, and %d after it was resumed; the route is %v", first, n, b.g.Status().State)
		}
		b.close()
	})
}

// Publishers who make messages fail for good, of as many keys as they like, slow nobody down whose messages succeed: the route asks at
// once, and a key that succeeded lately first.
func TestFlood_badMessagesOfManyKeysSlowNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: guarded})
		seq, slow := uint64(0), 0
		var sent []uint64
		at := map[uint64]time.Duration{}
		const before = 1000             // so many that all good keys are known
		for i := range before + 4_000 { // 40 seconds: 100 messages a second, and one of them is good
			seq++
			if i < before {
				b.send(succeed, fmt.Sprint("good", i%7), seq)
			} else if i%100 == 99 {
				at[seq] = time.Since(b.began)
				sent = append(sent, seq)
				b.send(succeed, fmt.Sprint("good", i%7), seq)
			} else {
				b.send(deadly, fmt.Sprint("bad", i), seq)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		for _, s := range sent {
			if starts := b.startsOf(s); len(starts) == 0 || starts[0]-at[s] > 5*time.Second {
				t.Fatalf("message %d, sent after %v, started after %v", s, at[s], starts)
			} else if starts[0]-at[s] > 20*time.Millisecond {
				slow++
			}
		}
		if s := b.g.Status(); slow > len(sent)/20 || s.Counts.DeadTrip == 0 {
			t.Errorf("%d of %d healthy messages waited for more than 20ms, in %d suspensions", slow, len(sent), s.Counts.DeadTrip)
		}
		b.close()
	})
}

// The core promise holds while the route is suspended: a healthy message of a key of its own starts within one interval between
// questions and two seconds, however many others are dead. With a stash of one message most are given back, and come when they come.
func TestFlood_messagesOfNewKeysAreAskedSoon(t *testing.T) {
	for _, order := range []bool{false, true} {
		for _, stash := range []int{1, 50, 1000} {
			t.Run(fmt.Sprintf("stash %d, ordered %v", stash, order), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					soon := 7 * time.Second
					if stash == 1 {
						soon = 30 * time.Second
					}
					b := newBench(t, Options{StashMessages: stash, Ordered: order, Config: guarded})
					s := stream{b: b}
					for n := range uint64(200) {
						s.publish(deadly, fmt.Sprint("bad", n), n+1)
					}
					s.deliver(time.Minute)
					for n := range uint64(5) {
						s.publish(succeed, fmt.Sprint("good", n), 1000+n)
						s.deliver(soon)
						b.wantFinal(1000+n, AckMessage)
					}
					if n := b.deadLetters(); n > 50*6 {
						t.Errorf("%d dead letters, with five successes", n)
					}
					b.close()
				})
			})
		}
	}
}

// A trial at an endpoint that is still broken was one request, and then rounds of 33.
func TestFlood_regressionATrialThatFailsAsksOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: guarded})
		for i := range uint64(3000) {
			b.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		time.Sleep(time.Minute)
		b.g.EndWaits(Trial)
		synctest.Wait()
		began := time.Since(b.began)
		time.Sleep(20 * time.Second)
		var gaps []time.Duration
		last := began
		for _, s := range b.allStarts() {
			if s.at > began {
				gaps = append(gaps, s.at-last)
				last = s.at
			}
		}
		if len(gaps) < 4 || len(gaps) > 8 || !slices.IsSorted(gaps) || gaps[0] < 100*time.Millisecond {
			t.Errorf("after a trial it asked after %v", gaps)
		}
		b.close()
	})
}

// What a question is answered with: only a success ends the suspension, however long it takes.
func TestFlood_onlyASuccessEndsTheSuspension(t *testing.T) {
	for what, tt := range map[string]struct {
		answer handlerFunc
		flows  bool
	}{
		"takes long":   {func(context.Context, *Message, int) Verdict { time.Sleep(3 * time.Second); return Verdict{Kind: Dead} }, false},
		"fails":        {failing, false},
		"panics":       {panicking, false},
		"hangs":        {obeying, false},
		"is snoozed":   {func(context.Context, *Message, int) Verdict { return Verdict{Kind: Snooze, Delay: time.Second} }, false},
		"names a time": {retryAfter(time.Minute), false},
		"is dead after 50ms": {func(context.Context, *Message, int) Verdict {
			time.Sleep(50 * time.Millisecond)
			return Verdict{Kind: Dead}
		}, false},
		"succeeds late": {func(context.Context, *Message, int) Verdict { time.Sleep(8 * time.Second); return ok }, true},
		"is dropped":    {func(context.Context, *Message, int) Verdict { return Verdict{Kind: Drop} }, true},
	} {
		for _, trial := range []bool{false, true} {
			t.Run(fmt.Sprint(what, ", trial ", trial), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, Options{
						Timeout: 10 * time.Second,
						Config:  supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}, Forward: supervisor.ForwardDrop, RetryAfter: supervisor.ScopeRoute},
					})
					for i := range uint64(10) {
						b.send(deadly, fmt.Sprint("key ", i), i+1)
					}
					synctest.Wait()
					if s := b.g.Status(); s.State != Suspended {
						t.Fatalf("the route is %v", s.State)
					}
					if trial {
						b.g.EndWaits(Trial)
					}
					b.send(tt.answer, "asked", 100)
					b.send(deadly, "early", 101)
					time.Sleep(30 * time.Second)
					if s := b.g.Status().State; (s == Flowing) != tt.flows {
						t.Errorf("the route is %v", s)
					}
					if n := b.deadLetters(); !tt.flows && n > 10 {
						t.Errorf("%d dead letters", n)
					}
					if o, ended := b.final(101); ended && !tt.flows {
						t.Errorf("what waits has ended: %+v", o)
					}
					b.close()
				})
			})
		}
	}
}

// A trial is one message, for as long as it runs.
func TestFlood_aTrialIsOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Timeout: time.Minute, Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}})
		b.redeliver = false
		for i := range uint64(10) {
			b.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		synctest.Wait()
		b.g.EndWaits(Trial)
		synctest.Wait() // one that was dead before is still so
		asked := len(b.allStarts())
		for i := range uint64(100) {
			b.send(takes(30*time.Second), fmt.Sprint("later ", i), 100+i)
		}
		time.Sleep(29 * time.Second)
		if n := len(b.allStarts()) - asked; n != 1 {
			t.Errorf("%d messages were tried", n)
		}
		time.Sleep(2 * time.Second)
		if s := b.g.Status().State; s != Flowing {
			t.Errorf("the route is %v", s)
		}
		b.close()
	})
}

// Others see one state, from the first dead letter too many to the first success, with its reason and since when.
func TestFlood_isOneStateForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}})
		var works atomic.Bool
		for i := range uint64(100) {
			b.send(func(context.Context, *Message, int) Verdict {
				if works.Load() {
					return ok
				}
				return Verdict{Kind: Dead, Err: errDown}
			}, fmt.Sprint("key ", i), i+1)
		}
		synctest.Wait()
		since := time.Now()
		for range 100 {
			time.Sleep(777 * time.Millisecond)
			s := b.g.Status()
			if s.State != Suspended || !s.Since.Equal(since) || !strings.Contains(s.Why, "9 of the last 9 answers were dead, over 3 keys or more (dead_trip): "+errDown.Error()) {
				t.Fatalf("%v since %v: %s", s.State, s.Since, s.Why)
			}
		}
		synctest.Wait()
		works.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		var told []string
		for _, e := range b.events {
			if e.Route {
				told = append(told, fmt.Sprint(e.From, "→", e.To))
			}
		}
		if want := []string{"flowing→suspended", "suspended→flowing"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		b.close()
	})
}

// A route that begins anew because a neighbour on its durable changed flowed, and cost as many dead letters again.
func TestFlood_regressionASuspensionOutlivesTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newBench(t, Options{Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}})
		for i := range uint64(100) {
			old.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		time.Sleep(time.Minute)
		was := old.g.Status()
		old.close()
		for _, of := range []int{10, 0} {
			b := newBench(t, Options{Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(of)}}})
			b.g.Inherit(old.g)
			for i := range uint64(100) {
				b.send(deadly, fmt.Sprint("key ", i), i+1)
			}
			time.Sleep(time.Minute)
			if s := b.g.Status(); s.State != Suspended || b.deadLetters() > 0 || s.Why != was.Why || s.Since != was.Since {
				t.Errorf("of %d: %d dead letters, the route is %v: %s", of, b.deadLetters(), s.State, s.Why)
			}
			b.close()
		}
	})
}

// A handler that ran since before the suspension is not the trial, and its dead was believed.
func TestFlood_regressionAnOldRunIsNotTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Timeout: time.Hour, Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}})
		b.send(first(1, func(context.Context, *Message, int) Verdict { time.Sleep(30 * time.Second); return Verdict{Kind: Dead} }, succeed), "old", 100)
		for i := range uint64(10) {
			b.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		time.Sleep(20 * time.Second)
		b.g.EndWaits(Trial)
		b.send(takes(20*time.Second), "trial", 101)
		time.Sleep(15 * time.Second)
		if s := b.g.Status(); s.State != Suspended {
			t.Errorf("the route is %v: %s", s.State, s.Why)
		}
		time.Sleep(time.Minute)
		b.wantFinal(101, AckMessage)
		b.wantFinal(100, AckMessage)
		if s := b.g.Status(); s.State != Flowing {
			t.Errorf("the route is %v: %s", s.State, s.Why)
		}
		b.close()
	})
}

func TestFlood_endWaitsAtOnceEndsTheSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{DeadTrip: supervisor.DeadTrip{Of: new(10)}}})
		b.redeliver = false
		for i := range uint64(10) {
			b.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		synctest.Wait()
		b.g.EndWaits(Trial)
		b.g.EndWaits(AtOnce)
		b.send(deadly, "k", 100)
		synctest.Wait()
		b.wantFinal(100, DeadLetter)
		b.close()
	})
}

// What answers says that it wants no more, once: nothing is started but what the route asks with, no attempt of these is spent, and
// it goes on by itself when one succeeds.
func TestFlood_oneAnswerSuspends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Bool
		var asked atomic.Int64
		b := newBench(t, Options{MaxAttempts: 3, Retry: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Second}})
		defer b.close()
		gone := func(context.Context, *Message, int) Verdict {
			asked.Add(1)
			if open.Load() {
				return Verdict{Kind: Ack}
			}
			return Verdict{Kind: Retry, Err: errDown, Suspend: true}
		}
		b.send(gone, "key 0", 1)
		synctest.Wait()
		for i := range uint64(500) {
			b.send(gone, fmt.Sprint("key ", i+1), i+2)
		}
		time.Sleep(10 * time.Minute)
		if s := b.g.Status(); s.State != Suspended || !strings.Contains(s.Why, errDown.Error()) {
			t.Errorf("the route is %v: %s", s.State, s.Why)
		}
		if n := asked.Load(); n > 5000 || b.deadLetters() > 0 {
			t.Errorf("asked %d times in ten minutes, %d dead letters", n, b.deadLetters())
		}
		open.Store(true)
		time.Sleep(time.Minute)
		if s := b.g.Status(); s.State != Flowing || b.deadLetters() > 0 {
			t.Errorf("the route is %v: %s, %d dead letters", s.State, s.Why, b.deadLetters())
		}
	})
}
