package supervise

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func TestStates_waitingAsForwardSays(t *testing.T) {
	for forward, want := range map[supervisor.Forward]Action{supervisor.ForwardGiveBack: GiveBack, supervisor.ForwardDrop: DropMessage} {
		t.Run(string(forward), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Config: supervisor.Config{Forward: forward, Restart: supervisor.Backoff{Min: 10 * time.Second}}})
				b.redeliver = false
				b.send(panicking, "k", 1)
				synctest.Wait()
				b.wantState("k", Waiting)
				b.send(succeed, "k", 2)
				o, _ := b.final(2)
				if o.Action != want || want == GiveBack && !o.Due.Equal(b.began.Add(10*time.Second)) {
					t.Errorf("outcome %+v, want action %d, at the end of the wait", o, want)
				}
				b.close()
			})
		})
	}
	t.Run(string(forwardStash), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Options{Config: supervisor.Config{Restart: supervisor.Backoff{Min: 10 * time.Second}}})
			b.send(panicking, "k", 1)
			synctest.Wait()
			b.send(succeed, "k", 2)
			if s := b.g.Status(); s.StashMessages != 1 {
				t.Errorf("%d messages in the stash", s.StashMessages)
			}
			time.Sleep(11 * time.Second)
			b.wantStarts(2, 10*time.Second+50*time.Millisecond) // the grace is over
			b.close()
		})
	})
}

func TestStates_aProbeIsOneMessageAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{Restart: supervisor.Backoff{Min: time.Second}}, Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}})
		b.send(panicking, "k", 1)
		synctest.Wait()
		b.send(takes(5*time.Second), "k", seq(2, 9)...)
		time.Sleep(1049 * time.Millisecond)
		b.wantState("k", Probing)
		b.wantOrder(1)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		b.wantOrder(1, 2)
		time.Sleep(4 * time.Second)
		b.wantOrder(1, 2)
		time.Sleep(time.Second)
		synctest.Wait()
		b.wantState("k", Flowing)
		b.close()
	})
}

func TestStates_theStashDrainsRamping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8, Config: supervisor.Config{Restart: supervisor.Backoff{Min: time.Second}}, Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}})
		b.send(panicking, "k", 1)
		synctest.Wait()
		b.send(takes(time.Second), "k", seq(2, 31)...)
		time.Sleep(time.Minute)
		at := map[time.Duration]int{}
		for _, s := range b.allStarts()[1:] {
			at[s.at]++
		}
		began := 1050 * time.Millisecond
		got := fmt.Sprint(at[began], at[began+time.Second], at[began+2*time.Second], at[began+3*time.Second])
		if got != "1 2 8 8" { // each success doubles: two of them make 2 to 8
			t.Errorf("starts by second: %s (%v)", got, at)
		}
		b.close()
	})
}

func TestStates_messagesDuringTheGrace(t *testing.T) {
	for forward, want := range map[bool]time.Duration{true: 1010 * time.Millisecond, false: 1050 * time.Millisecond} {
		t.Run(fmt.Sprint(forward), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Config: supervisor.Config{ForwardDuringGrace: &forward, Restart: supervisor.Backoff{Min: time.Second}}})
				b.redeliver = false
				b.send(panicking, "k", 1)
				time.Sleep(1010 * time.Millisecond)
				b.send(succeed, "k", 2)
				time.Sleep(time.Second)
				b.wantStarts(2, want)
				b.close()
			})
		})
	}
}

func TestStates_probesAreInTurnNewAndFailedOnesWithTheFewestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Concurrency: 1, Config: supervisor.Config{TripAfter: new(2), Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Second}},
			Retry: supervisor.Backoff{Min: 24 * time.Hour, Max: 24 * time.Hour},
		})
		b.send(failing, "k", 90, 91) // trip it
		synctest.Wait()
		for _, m := range []*Message{
			{Key: "k", Sequence: 3, Attempts: 1}, {Key: "k", Sequence: 2}, {Key: "k", Sequence: 1, Attempts: 1}, {Key: "k", Sequence: 4},
		} {
			b.add(m, failing)
			b.g.Deliver(m)
		}
		time.Sleep(8 * time.Second)
		b.wantOrder(90, 91, 2, 1, 4, 2, 3, 4, 1)
		b.close()
	})
}

func TestStates_aFailedProbeWaitsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{Restart: supervisor.Backoff{Min: time.Second, Max: 5 * time.Second}}})
		b.send(panicking, "k", seq(1, 9)...)
		time.Sleep(30 * time.Second)
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}
		if got := b.delays("k"); len(got) < 5 || fmt.Sprint(got[:5]) != fmt.Sprint(want) {
			t.Errorf("waits %v, want %v", got, want)
		}
		b.close()
	})
}

func TestStates_suspendedGivesEverythingBackForLongUntilResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.g.SuspendKey("k", "by hand")
		b.send(succeed, "k", 1)
		b.send(succeed, "other", 2)
		synctest.Wait()
		b.wantState("k", Suspended)
		b.wantStarts(2, 0)
		if o := b.wantLast(1, GiveBack); time.Until(o.Due) < 54*time.Minute || time.Until(o.Due) > time.Hour {
			t.Errorf("given back for %v", time.Until(o.Due))
		}
		time.Sleep(24 * time.Hour)
		b.wantStarts(1)
		if !b.g.ResumeKey("k") || b.g.ResumeKey("k") || b.g.ResumeKey("other") {
			t.Error("ResumeKey does not say whether the key was suspended")
		}
		time.Sleep(time.Hour)
		b.wantFinal(1, AckMessage)
		b.close()
	})
}

// Suspending and resuming works in every state, and with a child on its way.
func TestStates_suspendAndResumeInAnyState(t *testing.T) {
	for _, at := range []time.Duration{0, 500 * time.Millisecond, 1010 * time.Millisecond, 2500 * time.Millisecond, 10 * time.Second} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprint(at, own), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					opts := Options{Config: supervisor.Config{Restart: supervisor.Backoff{Min: time.Second}}}
					if own {
						opts.New = func(context.Context, string) (any, error) { time.Sleep(20 * time.Millisecond); return nil, nil }
					}
					b := newBench(t, opts)
					b.send(first(1, panicking, takes(2*time.Second)), "k", seq(1, 5)...)
					time.Sleep(at)
					b.g.SuspendKey("k", "test")
					b.g.SuspendKey("k", "twice")
					b.wantState("k", Suspended)
					b.g.ResumeKey("k")
					b.g.SuspendKey("k", "again")
					b.g.ResumeKey("k")
					time.Sleep(3 * time.Hour)
					for s := range uint64(5) {
						b.wantFinal(s+1, AckMessage)
					}
					b.close()
				})
			})
		}
	}
}

func TestStates_pauseHoldsAndResumeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.send(takes(time.Second), "k", 1)
		synctest.Wait()
		b.g.Pause()
		b.send(succeed, "k", 2)
		if room, flows := b.g.Free(); room != (Room{}) || flows {
			t.Errorf("free %+v, flows %v while paused", room, flows)
		}
		time.Sleep(time.Minute)
		b.wantFinal(1, AckMessage) // it ran
		b.wantStarts(2)
		b.wantLast(2, GiveBack) // any instance may have it
		b.g.Resume()
		time.Sleep(5 * time.Minute) // consumer calls it back at once
		b.wantFinal(2, AckMessage)
		b.close()
	})
}

// Under forward: drop a message that arrived while an operator had paused the route was acknowledged and gone.
func TestStates_regressionAPauseDropsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{Forward: supervisor.ForwardDrop}})
		b.g.Pause()
		b.send(succeed, "k", 1)
		b.g.Resume()
		time.Sleep(5 * time.Minute)
		b.wantFinal(1, AckMessage)
		b.close()
	})
}

func TestStates_anUnknownVerdictLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.redeliver = false
		b.send(func(context.Context, *Message, int) Verdict { return Verdict{Kind: 77} }, "k", 1)
		synctest.Wait()
		b.wantLast(1, RetryLater)
		b.close()
	})
}

func TestStates_aPanicIsAStopWhateverItsValue(t *testing.T) {
	for name, value := range map[string]any{
		"error": errDown, "string": "boom", "nil": nil, "a type whose Error panics": badError{}, "a pointer": new(3),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{MaxAttempts: 1})
				b.send(func(context.Context, *Message, int) Verdict { panic(value) }, "k", 1)
				b.send(func(_ context.Context, _ *Message, n int) Verdict { var l []int; return Verdict{Kind: Kind(l[n])} }, "l", 2)
				synctest.Wait()
				for _, seq := range []uint64{1, 2} {
					o := b.wantFinal(seq, DeadLetter)
					if o.Reason != ReasonExhausted || o.Err == nil || o.Err.Error() == "" || len(o.Stack) == 0 || len(o.Stack) > 16<<10 {
						t.Errorf("outcome %+v", o)
					}
				}
				b.wantState("k", Waiting)
				b.close()
			})
		})
	}
}

type badError struct{}

func (badError) Error() string { panic("again") }
