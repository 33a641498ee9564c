package supervise

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func TestTriggers_afterACleanStopAndAfterACrash(t *testing.T) {
	for _, tt := range []struct {
		trigger      supervisor.Trigger
		clean, crash State
	}{
		{triggerAny, Waiting, Waiting},
		{supervisor.TriggerFailure, Stopped, Waiting},
		{supervisor.TriggerStop, Waiting, Suspended},
	} {
		for name, stop := range map[string]handlerFunc{"clean": stopping, "crash": panicking} {
			t.Run(string(tt.trigger)+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, Options{Config: supervisor.Config{Trigger: tt.trigger}})
					b.redeliver = false
					b.send(stop, "k", 1)
					synctest.Wait()
					want := tt.clean
					if name == "crash" {
						want = tt.crash
					}
					if got := b.moves("k"); fmt.Sprint(got) != fmt.Sprint([]State{want}) {
						t.Errorf("moves %v, want %v", got, want)
					}
					if name == "clean" {
						b.wantFinal(1, AckMessage)
					}
					b.close()
				})
			})
		}
	}
}

func TestTriggers_afterACleanStopTheNextMessageMakesANewSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1, Config: supervisor.Config{Trigger: supervisor.TriggerFailure}})
		b.send(stopping, "k", 1)
		b.send(succeed, "k", 2, 3) // were there already
		synctest.Wait()
		b.send(succeed, "k", 4)
		synctest.Wait()
		for s := range uint64(4) {
			b.wantStarts(s+1, 0)
		}
		b.close()
	})
}

func TestTriggers_aStopCancelsTheOtherRunsWhichSpendNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}})
		b.send(first(1, obeying, succeed), "k", 1, 2)
		b.send(panicking, "k", 3)
		time.Sleep(time.Minute)
		for s := range uint64(2) {
			if o := b.wantFinal(s+1, AckMessage); o.Attempts != 0 {
				t.Errorf("message %d spent %d attempts", s+1, o.Attempts)
			}
		}
		if o := b.wantLast(3, RetryLater); o.Attempts != 1 {
			t.Errorf("the one that panicked: %+v", o)
		}
		b.close()
	})
}

// What the runs of an old child return settles their messages and does not move the key.
func TestTriggers_lateResultsOfAnOldChildMoveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{Restart: supervisor.Backoff{Min: 10 * time.Second}}, Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}})
		b.send(takes(time.Second), "k", 1)
		b.send(func(_ context.Context, _ *Message, _ int) Verdict { time.Sleep(2 * time.Second); panic("late") }, "k", 2)
		b.send(panicking, "k", 3)
		time.Sleep(5 * time.Second)
		b.wantFinal(1, AckMessage)
		if got := b.moves("k"); fmt.Sprint(got) != "[waiting]" {
			t.Errorf("moves %v", got)
		}
		b.close()
	})
}
