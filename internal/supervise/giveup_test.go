package supervise

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func giveUp(t *testing.T, on supervisor.GiveUp) *bench {
	b := newBench(t, Options{Config: supervisor.Config{
		OnGiveUp: on, MaxRestarts: 2, Window: time.Minute, Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Second},
	}})
	b.redeliver = false
	for s := range uint64(3) {
		b.send(panicking, "k", s+1)
		time.Sleep(2 * time.Second)
	}
	b.wantState("k", Suspended)
	b.send(succeed, "k", 9)
	b.send(succeed, "other", 10)
	synctest.Wait()
	b.wantFinal(10, AckMessage)
	return b
}

func TestGiveUp_suspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := giveUp(t, giveUpSuspend)
		b.wantLast(9, GiveBack)
		b.g.ResumeKey("k")
		b.send(succeed, "k", 11)
		time.Sleep(time.Second)
		b.wantFinal(11, AckMessage)
		b.close()
	})
}

func TestGiveUp_deadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := giveUp(t, supervisor.GiveUpDeadLetter)
		if o := b.wantFinal(9, DeadLetter); o.Reason != ReasonGaveUp || o.Err == nil {
			t.Errorf("outcome %+v", o)
		}
		b.g.ResumeKey("k")
		b.send(succeed, "k", 11)
		time.Sleep(time.Second)
		b.wantFinal(11, AckMessage)
		b.close()
	})
}

func TestGiveUp_exit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := giveUp(t, supervisor.GiveUpExit)
		if b.escaped == nil {
			t.Error("not escalated")
		}
		b.wantLast(9, GiveBack)
		b.close()
	})
}

func TestGiveUp_onlyWithinTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{MaxRestarts: 2, Window: 10 * time.Second, Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Second}}})
		b.redeliver = false
		for s := range uint64(20) {
			b.send(panicking, "k", s+1)
			time.Sleep(6 * time.Second)
		}
		for _, to := range b.moves("k") {
			if to == Suspended {
				t.Fatal("gave up")
			}
		}
		b.close()
	})
}

func TestGiveUp_neverByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 1000})
		b.send(panicking, "k", 1)
		time.Sleep(24 * time.Hour)
		for _, to := range b.moves("k") {
			if to == Suspended {
				t.Fatal("gave up")
			}
		}
		b.close()
	})
}
