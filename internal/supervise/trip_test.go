package supervise

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func TestTrip_aPoisonMessageDoesNotSlowItsNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 4, MaxAttempts: 10})
		b.send(failing, "k", 1)
		for s := range uint64(3000) {
			b.send(takes(time.Millisecond), "k", 2+s)
			time.Sleep(10 * time.Millisecond)
		}
		for _, s := range b.allStarts() {
			if late := s.at - time.Duration(s.seq-2)*10*time.Millisecond; s.seq > 1 && late > time.Millisecond {
				t.Fatalf("message %d started %v late", s.seq, late)
			}
		}
		if to := b.moves("k"); len(to) != 0 {
			t.Errorf("the key moved: %v", to)
		}
		b.close()
	})
}

func TestTrip_consecutiveFailuresOfTwoMessages(t *testing.T) {
	for _, tt := range []struct {
		after, messages int
		trips           bool
	}{{5, 1, false}, {5, 2, true}, {1, 1, true}, {0, 9, false}} {
		t.Run(fmt.Sprintf("trip_after %d, %d messages", tt.after, tt.messages), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Config: supervisor.Config{TripAfter: new(tt.after)}})
				b.send(failing, "k", seq(1, uint64(tt.messages))...)
				time.Sleep(time.Minute)
				if trips := len(b.moves("k")) > 0; trips != tt.trips {
					t.Errorf("tripped: %v", trips)
				}
				b.close()
			})
		})
	}
}

func TestTrip_anAnswerResetsTheCountAndPassesAProbe(t *testing.T) {
	for _, kind := range []Kind{Ack, Dead, Drop} {
		t.Run(kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := func(context.Context, *Message, int) Verdict { return Verdict{Kind: kind, Err: errDown} }
				b := newBench(t, Options{Config: supervisor.Config{TripAfter: new(3)}})
				b.redeliver = false
				sends := func(h handlerFunc, seqs ...uint64) {
					for _, s := range seqs {
						b.send(h, "k", s)
						synctest.Wait()
					}
				}
				sends(failing, 1, 2)
				sends(answer, 3)
				sends(failing, 4, 5)
				b.wantState("k", Flowing)
				sends(failing, 6)
				b.wantState("k", Waiting)
				sends(answer, 7)
				time.Sleep(time.Second)
				b.wantState("k", Flowing)
				b.close()
			})
		})
	}
}

func TestTrip_snoozesAndLostLeasesChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{TripAfter: new(3)}})
		b.redeliver = false
		lost := func(context.Context, *Message, int) Verdict { return Verdict{Kind: Lost} }
		for s, h := range []handlerFunc{failing, snoozing(time.Minute), failing, lost, failing} {
			b.wantState("k", Flowing)
			b.send(h, "k", uint64(s+1))
			synctest.Wait()
		}
		b.wantState("k", Waiting) // three failures, and nothing between them counted
		if o := b.wantLast(2, GiveBack); o.Attempts != 0 || !o.Due.Equal(b.began.Add(time.Minute)) {
			t.Errorf("snoozed: %+v", o)
		}
		b.wantLast(4, LetGo)
		b.close()
	})
}

func TestTrip_countsLapseAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{TripAfter: new(3), Window: 10 * time.Second}})
		b.redeliver = false
		for s := range uint64(9) {
			b.send(failing, "k", s+1)
			time.Sleep(10 * time.Second)
		}
		b.wantState("k", Flowing)
		b.close()
	})
}

func TestTrip_anHourOfOutageDeadLettersNothing(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 10} {
		for _, started := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d messages, started %v", n, started), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, Options{MaxAttempts: 20, MaxAge: 24 * time.Hour})
					var down atomic.Bool
					down.Store(true)
					b.send(func(context.Context, *Message, int) Verdict {
						if down.Load() {
							return Verdict{Kind: Retry, Err: errDown, NotStarted: !started}
						}
						return ok
					}, "k", seq(1, n)...)
					time.Sleep(time.Hour)
					down.Store(false)
					time.Sleep(20 * time.Minute)
					for s := range n {
						b.wantFinal(s+1, AckMessage)
					}
					b.close()
				})
			})
		}
	}
}

// A probe that named the time of its next attempt was asked again as soon as its key's wait was over.
func TestTrip_regressionAProbeIsNotAskedBeforeTheTimeItNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{TripAfter: new(2)}})
		b.send(func(context.Context, *Message, int) Verdict {
			return Verdict{Kind: Retry, Err: errDown, Delay: 90 * time.Second}
		}, "k", 1, 2)
		time.Sleep(time.Hour)
		for s := range uint64(2) {
			at := b.startsOf(s + 1)
			for i := 1; i < len(at); i++ {
				if at[i]-at[i-1] < 90*time.Second {
					t.Errorf("message %d started at %v", s+1, at)
				}
			}
		}
		b.close()
	})
}

func TestTrip_anOutageOfDaysIsBoundedByMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 20, MaxAge: 24 * time.Hour, StashMessages: 2})
		b.send(failing, "k", 1, 2, 3)
		time.Sleep(23 * time.Hour)
		for s := range uint64(3) {
			if o, ended := b.final(s + 1); ended {
				t.Errorf("message %d ended early: %+v", s+1, o)
			}
		}
		time.Sleep(48 * time.Hour)
		for s := range uint64(3) {
			if o := b.wantFinal(s+1, DeadLetter); o.Reason != ReasonExpired && o.Reason != ReasonExhausted {
				t.Errorf("message %d: %+v", s+1, o)
			}
		}
		b.close()
	})
}
