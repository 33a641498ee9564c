package supervise

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

var ordered = Options{Ordered: true, Retry: supervisor.Backoff{Min: time.Second, Max: time.Minute}, MaxAttempts: 3}

func TestOrder_aFailingHeadHoldsItsSuccessorsAndNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.send(first(2, failing, succeed), "a", 1)
		b.send(succeed, "a", 2, 3)
		b.send(succeed, "b", 4, 5)
		time.Sleep(time.Minute)
		b.wantStarts(1, 0, time.Second, 3*time.Second)
		b.wantStarts(2, 3*time.Second)
		b.wantStarts(3, 3*time.Second)
		b.wantStarts(4, 0)
		b.wantStarts(5, 0)
		b.close()
	})
}

func TestOrder_afterTheLastAttemptTheKeyMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.send(failing, "a", 1)
		b.send(succeed, "a", 2)
		time.Sleep(time.Minute)
		if o := b.wantFinal(1, DeadLetter); o.Attempts != 3 {
			t.Errorf("dead-lettered after %d attempts", o.Attempts)
		}
		b.wantOrder(1, 1, 1, 2)
		b.close()
	})
}

func TestOrder_holdsAcrossStopsAndSnoozes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.send(first(1, panicking, succeed), "a", 1)
		b.send(first(1, snoozing(time.Minute), succeed), "a", 2)
		b.send(succeed, "a", 3)
		time.Sleep(time.Hour)
		b.wantOrder(1, 1, 2, 2, 3)
		b.close()
	})
}

func TestOrder_theNewestIsGivenBackFirstAndNothingOvertakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := ordered
		opts.StashMessages = 3
		b := newBench(t, opts)
		b.send(first(2, failing, succeed), "a", 1)
		synctest.Wait()
		b.send(succeed, "a", 2, 3, 4, 5)
		synctest.Wait()
		for seq := range uint64(5) {
			_, settled := b.final(seq + 1)
			if out := len(b.outcomes[seq+1]) > 0; out != (seq+1 > 3) || settled {
				t.Errorf("message %d was given back: %v", seq+1, out)
			}
		}
		b.send(succeed, "a", 6) // its key flows again, and 4 and 5 are outside
		time.Sleep(time.Hour)
		b.wantOrder(1, 1, 1, 2, 3, 4, 5, 6)
		b.close()
	})
}

// A message whose deadline was over when it came again blocked its key for a minute: it was ended before the group heard of it.
func TestOrder_regressionWhatEndsOutsideIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.g.Expect("a", 5)
		b.send(succeed, "a", 6, 7)
		b.g.Ended("b", 5)
		b.g.Ended("a", 4)
		time.Sleep(time.Second)
		b.wantOrder()
		b.g.Ended("a", 5)
		synctest.Wait()
		b.wantOrder(6, 7)
		b.close()
	})
}

func TestOrder_whatAnotherInstanceHasIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := ordered
		opts.StashMessages = 1
		b := newBench(t, opts)
		b.redeliver = false
		b.send(first(1, failing, succeed), "a", 1)
		b.send(succeed, "a", 2) // evicted, and never comes again
		time.Sleep(time.Minute)
		b.send(succeed, "a", 3)
		time.Sleep(time.Hour)
		b.wantOrder(1, 1, 3)
		if n := b.keys(); n != 0 {
			t.Errorf("%d keys are kept for a message that is gone", n)
		}
		b.close()
	})
}

// A message that came back before its own delay was over was put in the window, where no timer watched over it: it, and
// all behind it, never started.
func TestOrder_regressionAnEarlyMessageOfAFlowingKeyStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		m := &Message{Key: "a", Sequence: 1, Size: 1, Attempts: 1, Due: time.Now().Add(time.Minute)}
		b.add(m, succeed)
		b.g.Deliver(m)
		b.send(succeed, "a", 2)
		time.Sleep(2 * time.Minute)
		b.wantStarts(1, time.Minute)
		b.wantStarts(2, time.Minute)
		b.close()
	})
}

// The probe of a route was picked from an ordered key whose first message was still running since before the wait.
func TestOrder_regressionARouteProbeDoesNotRunBesideTheHeadOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := ordered
		opts.Config.RouteTrip.Of = new(3)
		b := newBench(t, opts)
		b.send(takes(20*time.Second), "slow", 1, 2)
		for i := range uint64(3) {
			b.send(failing, fmt.Sprint("k", i), 10+i)
		}
		time.Sleep(time.Minute)
		b.wantStarts(1, 0)
		if at := b.startsOf(2); len(at) != 1 || at[0] < 20*time.Second {
			t.Errorf("message 2 started at %v, and message 1 ran until 20s", at)
		}
		b.close()
	})
}

// The attempts of a message that waits in the stash with its lease kept alive are known here only. When it was evicted,
// or the group closed, they were forgotten, and it had its full count again.
func TestOrder_regressionAnEvictedHeadKeepsItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := ordered
		opts.StashBytes = 50 // less than one message
		b := newBench(t, opts)
		b.send(failing, "a", 1)
		time.Sleep(24 * time.Hour)
		b.wantFinal(1, DeadLetter)
		if n := len(b.startsOf(1)); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
		b.close()
	})
}

func TestOrder_regressionAHeadKeepsItsAttemptsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.send(failing, "a", 1)
		synctest.Wait()
		b.close()
		if o := b.wantLast(1, GiveBack); o.Attempts != 1 || b.remembered[1] != 1 {
			t.Errorf("outcome %+v, stored %d", o, b.remembered[1])
		}
	})
}

// With forward: giveback the first message that came was taken as the probe; one that had to wait for an earlier one
// then kept that one out for ever.
func TestOrder_regressionOnlyAHeadIsTakenAsProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := ordered
		opts.Config.Forward = supervisor.ForwardGiveBack
		b := newBench(t, opts)
		b.send(first(1, panicking, succeed), "a", 1)
		b.send(succeed, "a", 2, 3, 4, 5, 6)
		time.Sleep(time.Hour)
		b.wantOrder(1, 1, 2, 3, 4, 5, 6)
		b.close()
	})
}

func TestOrder_survivesASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.g.Pause()
		b.send(succeed, "a", 1, 2, 3)
		b.g.SuspendKey("a", "test")
		b.g.Resume()
		time.Sleep(time.Minute)
		b.g.ResumeKey("a")
		b.send(succeed, "a", 4)
		time.Sleep(3 * time.Hour)
		b.wantOrder(1, 2, 3, 4)
		b.close()
	})
}

func TestOrder_laterMessagesWaitUntilTheyAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.g.HoldAbove(2, time.Now().Add(30*time.Second))
		b.send(succeed, "a", 3)
		b.send(succeed, "b", 4)
		time.Sleep(10 * time.Second)
		b.send(succeed, "a", 1)
		synctest.Wait()
		if keys := b.g.KeyStates(10); len(keys) != 2 || keys[0].State != Waiting || !keys[0].Until.Equal(b.began.Add(30*time.Second)) {
			t.Errorf("keys %+v", keys)
		}
		time.Sleep(10 * time.Second)
		b.wantOrder(1)
		b.send(succeed, "a", 2)
		b.g.HoldAbove(0, time.Time{})
		synctest.Wait()
		b.wantStarts(3, 20*time.Second)
		b.wantStarts(4, 20*time.Second)
		b.close()
	})
}

// While the records of what came again could not be read, the status said for an hour that it had not arrived, with an end that nobody knew. After
// that hour later messages overtook it.
func TestOrder_regressionWhatHasArrivedIsNotSaidToBeMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.g.HoldAbove(2, time.Now().Add(30*time.Second))
		b.send(succeed, "a", 3)
		time.Sleep(20 * time.Second)
		b.g.HoldBehind(2)
		time.Sleep(2 * time.Hour)
		if keys := b.g.KeyStates(10); len(keys) != 1 || !strings.Contains(keys[0].Why, "have arrived") || !keys[0].Since.Equal(b.began) || !keys[0].Until.IsZero() {
			t.Errorf("keys %+v", keys)
		}
		b.send(succeed, "a", 1)
		synctest.Wait()
		b.wantOrder(1)
		b.send(succeed, "a", 2)
		b.g.HoldAbove(0, time.Time{})
		synctest.Wait()
		b.wantOrder(1, 2, 3)
		b.close()
	})
}

func TestOrder_laterMessagesWaitNoLongerThanTheyMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.g.HoldAbove(2, time.Now().Add(30*time.Second))
		b.send(succeed, "a", 1, 3)
		time.Sleep(time.Minute) // 2 went to another instance
		b.wantStarts(1, 0)
		b.wantStarts(3, 30*time.Second)
		b.close()
	})
}

// A delivery that a stalled link brought too late was let go, and the messages after it started.
func TestOrder_regressionWhatIsExpectedIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.g.Expect("a", 1)
		b.send(succeed, "a", 2)
		b.send(succeed, "b", 3)
		time.Sleep(20 * time.Second)
		b.wantOrder(3)
		b.send(succeed, "a", 1)
		time.Sleep(time.Second)
		b.wantOrder(3, 1, 2)
		b.close()
	})
}

// While the route waits, an earlier message of an ordered key arrives: it came and went every 100 ms ever after, and kept the
// one in the stash, which the route would have probed with, from starting.
func TestOrder_regressionAnEarlierMessageIsTheProbeOfItsRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{Forward: supervisor.ForwardGiveBack}, Ordered: true, Concurrency: 2})
		handle := func(_ context.Context, m *Message, n int) Verdict {
			if m.Sequence == 2 && n == 1 {
				return Verdict{Kind: Retry, Err: errDown, Delay: time.Second, Pause: true}
			}
			return ok
		}
		b.send(handle, "k", 2, 3)
		time.Sleep(300 * time.Millisecond)
		b.send(handle, "k", 1)
		time.Sleep(time.Minute)
		b.wantOrder(2, 1, 2, 3)
		b.close()
	})
}

// A failing head waits in the stash. For that it was told to nobody: no line in the log, no count, no key that waits.
func TestOrder_regressionAFailingHeadIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.send(first(2, failing, succeed), "a", 1)
		b.send(succeed, "a", 2)
		time.Sleep(1500 * time.Millisecond)
		b.mu.Lock()
		n := b.remembered[1]
		b.mu.Unlock()
		if n != 2 {
			t.Errorf("the owner was told of %d failures, want 2", n)
		}
		keys := b.g.KeyStates(10)
		if len(keys) != 1 {
			t.Fatalf("keys %+v", keys)
		}
		k := keys[0]
		if k.State != Waiting || k.Why != "the first message of the key failed: down" || !k.Since.Equal(b.began) ||
			!k.Until.Equal(b.began.Add(3*time.Second)) || k.Stash != 2 {
			t.Errorf("key %+v", k)
		}
		if s := b.g.Status(); s.Keys[Waiting] != 1 || s.Keys[Flowing] != 0 {
			t.Errorf("status %+v", s)
		}
		time.Sleep(time.Minute)
		b.wantOrder(1, 1, 1, 2)
		if keys := b.g.KeyStates(10); len(keys) > 0 {
			t.Errorf("keys %+v", keys)
		}
		b.close()
	})
}

// The attempts of a head were in memory only: a process that was killed after every second one started it for ever.
func TestOrder_regressionAHeadStartsAgainOnlyWhenItsFailureIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.slowly = 10 * time.Second
		b.send(first(1, failing, succeed), "a", 1)
		b.send(succeed, "a", 2)
		time.Sleep(time.Minute)
		b.wantStarts(1, 0, 10*time.Second)
		b.wantStarts(2, 10*time.Second)
		b.close()
	})
}

// What is decided about a message while its failure is being stored waits for that, or two of them would be at it.
func TestOrder_aHeadThatLeavesWhileItsFailureIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.slowly = 10 * time.Second
		b.send(first(1, panicking, succeed), "a", 1)
		synctest.Wait()
		b.g.SuspendKey("a", "test")
		time.Sleep(5 * time.Second)
		if o, _ := b.final(1); o.Why != "" {
			t.Errorf("it was settled before: %+v", o)
		}
		time.Sleep(10 * time.Second)
		if o := b.wantLast(1, GiveBack); o.Attempts != 1 || !o.Aside {
			t.Errorf("outcome %+v", o)
		}
		b.g.ResumeKey("a")
		time.Sleep(2 * time.Hour)
		b.wantFinal(1, AckMessage)
		b.close()
	})
}

// What had been given back when an operator paused an ordered route was forgotten after two minutes: after a longer time the next
// message of the key started first.
func TestOrder_regressionAPauseOfMinutesKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.redeliver = false
		b.send(first(1, func(context.Context, *Message, int) Verdict {
			time.Sleep(2 * time.Second)
			return Verdict{Kind: Retry, Err: errDown}
		}, succeed), "k", 5)
		b.send(succeed, "k", 6, 7)
		time.Sleep(time.Second)
		b.g.Pause()
		time.Sleep(10 * time.Minute)
		if o, ended := b.final(5); ended {
			t.Errorf("message 5: %+v", o)
		}
		b.wantLast(6, GiveBack)
		b.g.Resume()
		b.send(succeed, "k", 7) // as the server pleases
		time.Sleep(10 * time.Second)
		b.send(succeed, "k", 6)
		time.Sleep(10 * time.Second)
		b.wantStarts(6)
		b.wantStarts(7)
		b.send(succeed, "k", 5)
		time.Sleep(time.Second)
		for _, seq := range []uint64{5, 6, 7} {
			b.wantFinal(seq, AckMessage)
		}
		at := time.Since(b.began) - time.Second
		b.wantStarts(6, at)
		b.wantStarts(7, at)
		time.Sleep(time.Hour)
		if n := b.keys(); n > 0 {
			t.Errorf("%d keys are left", n)
		}
		b.close()
	})
}

// A durable that is made again counts from 1. A message of the old one that was in hand then left only afterwards, with any verdict that has a message
// come again: the new messages of its key with higher numbers waited for it, for a minute or more.
func TestOrder_regressionNothingIsExpectedFromBeforeSequencesBeganAgain(t *testing.T) {
	for name, v := range map[string]Verdict{
		"lost": {Kind: Lost}, "failed": {Kind: Retry, Delay: time.Hour}, "snoozed": {Kind: Snooze, Delay: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Ordered: true, Retry: supervisor.Backoff{Min: time.Second, Max: time.Second}, Config: supervisor.Config{TripAfter: new(0)}})
				renumbered := make(chan struct{})
				b.send(func(context.Context, *Message, int) Verdict { <-renumbered; return v }, "a", 1)
				synctest.Wait()
				b.g.Renumbered()
				close(renumbered)
				synctest.Wait()
				time.Sleep(5 * time.Second)
				b.send(succeed, "a", 2)
				time.Sleep(5 * time.Second)
				b.wantOrder(1, 2)
				b.close()
			})
		})
	}
}

// What waits in the group when sequences begin again is let go at once: new messages of its key do not stand behind it. Those whose sequences go on stay.
func TestOrder_regressionWhatWaitsIsLetGoWhenSequencesBeginAgain(t *testing.T) {
	for _, replayed := range []bool{false, true} {
		t.Run(fmt.Sprint("replayed ", replayed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Ordered: true, Timeout: time.Hour})
				done := make(chan struct{})
				wait := func(context.Context, *Message, int) Verdict { <-done; return ok }
				b.send(wait, "a", 1)
				b.send(wait, "b", 2)
				synctest.Wait()
				b.send(succeed, "a", 7, 8, 9)
				b.sendReplayed(succeed, "b", 5)
				if replayed {
					b.g.RenumberedReplays()
				} else {
					b.g.Renumbered()
				}
				close(done)
				if !replayed {
					b.send(succeed, "a", 3)
				}
				time.Sleep(time.Second)
				want := []uint64{1, 2, 3, 5}
				if replayed {
					want = []uint64{1, 2, 7, 8, 9}
				}
				var started []uint64
				for _, s := range b.allStarts() {
					started = append(started, s.seq)
				}
				if slices.Sort(started); !slices.Equal(started, want) {
					t.Errorf("%v are started, want %v", started, want)
				}
				b.close()
			})
		})
	}
}
