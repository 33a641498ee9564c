package chaos

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows of docs/reliability.md: the relay process.

// TestF00 is a run without faults: everything is exact.
func TestF00_faultFree(t *testing.T) { faultFree(begin(t), of(1000, 20_000), 30*time.Second) }

func faultFree(w *World, n int, within time.Duration) {
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{})
	w.Produce(Load{Count: n, Script: mixed(0, 10)})
	r := w.Check(Expect{Delay: 200 * ms, Within: within, Each: true})
	w.Figure("%d messages, %d starts, %d duplicates, %d dead letters, attempts exact", r.Published, r.Starts, r.Duplicates, r.Dead)
}

func TestF01_killMidBatch(t *testing.T) {
	w := begin(t)
	h := simple(w)
	const ackWait = time.Second
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"concurrency": 100, "ack_wait": "1s"}})
	wait := background(func() { w.Produce(Load{Count: of(800, 20_000), Rate: of(0, 1500), Script: mixed(50, 20)}) })
	var back time.Duration
	var kills []time.Time
	for range of(3, 20) {
		time.Sleep(w.Between(50*ms, 500*ms))
		kills = append(kills, w.KillRelay(r1).At)
		r1.Start()
		at := time.Now()
		// Work waits: what is unacknowledged comes after AckWait, what was never delivered at once.
		r1.WaitReady(10 * time.Second)
		back = max(back, time.Since(at))
	}
	wait()
	// The hand-over is taken from a kill of its own: what was in flight at the others met the next one.
	w.Eventually(time.Minute, "rest", func() bool { return w.rest().done() })
	w.Produce(Load{Count: 200, Script: sleeping(300)})
	w.Eventually(5*time.Second, "handlers run", func() bool { return w.Running() >= 60 })
	last := w.KillRelay(r1).At
	kills = append(kills, last)
	r1.Start()
	r := w.Check(Expect{Within: time.Minute, Each: true})
	handOver := w.HandOver(last)
	if handOver == 0 {
		t.Error("I-14: nothing ran at the last kill")
	}
	if back > 2*time.Second {
		t.Errorf("I-12: ready only %v after the restart, want ≤ 2s", back)
	}
	if handOver > ackWait+2*time.Second {
		t.Errorf("I-14: what ran at a kill started again after %v, want ≤ %v", handOver, ackWait+2*time.Second)
	}
	w.Figure("%d kills, %d messages: 0 lost, %d duplicates ≤ %s; ready again after ≤ %v, hand-over ≤ %v",
		len(kills), r.Published, r.Duplicates, r.Arithmetic, back.Round(ms), handOver.Round(ms))
}

// F04: the paused instance has failures and hopeless verdicts in its hands when it wakes up. It must keep them to itself: a
// NAK or a dead letter from it would start a message a third time, or bury one that the other instance handles.
func TestF04_pauseBeyondLease(t *testing.T) { pauseBeyondLease(begin(t), of(1, 10)) }

func pauseBeyondLease(w *World, rounds int) {
	h := simple(w)
	route := M{"ack_wait": "1s", "concurrency": 64}
	r1 := w.StartRelay("r1", h, RelayConfig{Route: route})
	for round := range rounds {
		before := w.Starts()
		n := 60
		// Keys of their own: one that has failed gets one slot at a time.
		subject := func(i int) string { return fmt.Sprintf("t.%d.%d", round, i) }
		w.Produce(Load{Count: n, Subject: subject, Script: func(i int) ledger.Script {
			do := []string{"fail", "dead", "ok"}[i%3]
			// The first time: ends while r1 sleeps. The second time: still runs when r1 wakes up.
			return ledger.Script{Do: do, Once: true, Sleep: 1500, SleepOK: 3500}
		}})
		w.Eventually(5*time.Second, "handlers run on r1", func() bool { return w.Starts()-before >= n })
		r2 := w.StartRelay("r2", h, RelayConfig{Route: route, NoWait: true})
		if running := w.Running(); running < n {
			w.T.Fatalf("only %d of %d handlers run at the pause: the machine is too slow for this row", running, n)
		}
		w.Pause(r1.Proc, 3*time.Second)
		if _, ok := w.Within(12*time.Second, func() bool { return w.rest().done() }); !ok {
			w.T.Fatalf("%s: %s", NotDrained, w.rest())
		}
		r2.Signal(syscall.SIGTERM)
		if _, ok := r2.Wait(7 * time.Second); !ok {
			w.T.Error("r2 does not drain")
		}
		w.Done(r2.Proc)
	}
	r := w.Check(Expect{})
	perMessage := map[string]int{}
	most, late := 0, 0
	for _, run := range w.ledgers.Runs {
		perMessage[run.ID]++
		most = max(most, perMessage[run.ID])
	}
	for _, n := range perMessage {
		if n > 2 {
			late++
		}
	}
	if late > 0 {
		w.Wrong(NotFenced, "%d messages were started more than twice: the paused instance let go of what was not its own", late)
	}
	if r.Dead > 0 {
		w.Wrong(NotFenced, "%d dead letters by the paused instance", r.Dead)
	}
	w.Figure("%d pauses of 3 × AckWait, %d messages in hand: %d late NAKs, %d late dead letters, starts per message ≤ %d",
		rounds, r.Published, late, r.Dead, most)
}

// F04, too: handlers that ran into their timeout while relay was stopped were not told before it woke up. They must not
// count as hung, or max_stuck stops the route for good.
func TestF04_pauseBeyondTimeout(t *testing.T) {
	w := begin(t)
	r1 := w.StartRelay("r1", simple(w), RelayConfig{Route: M{"timeout": "1s", "concurrency": 64}})
	rounds, n := of(1, 10), 60
	for round := range rounds {
		before := w.Starts()
		subject := func(i int) string { return fmt.Sprintf("t.%d.%d", round, i) }
		w.Produce(Load{Count: n, Subject: subject, Script: func(int) ledger.Script { return ledger.Script{Do: "hang", Once: true} }})
		w.Eventually(5*time.Second, "handlers run", func() bool { return w.Starts()-before >= n })
		w.Pause(r1.Proc, 2500*ms)
		if _, ok := w.Within(20*time.Second, func() bool { return w.rest().done() }); !ok {
			w.T.Fatalf("%s: %s", NotDrained, w.rest())
		}
	}
	r := w.Check(Expect{})
	w.Figure("%d pauses beyond timeout and grace, %d handlers running at each: %d handled, the route goes on", rounds, n, r.Handled)
}

func TestF05_pauseWithinLease(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "2s", "concurrency": 32}})
	w.StartRelay("r2", h, RelayConfig{Route: M{"ack_wait": "2s", "concurrency": 32}})
	wait := background(func() { w.Produce(Load{Count: of(600, 6000), Rate: of(400, 400), Script: sleeping(100)}) })
	for range of(1, 5) {
		time.Sleep(w.Between(200*ms, 400*ms))
		w.Pause(r1.Proc, time.Second)
		time.Sleep(of(0, time.Second))
	}
	wait()
	zero := 0
	r := w.Check(Expect{Bound: &zero})
	w.Figure("%d pauses of 0.5 × AckWait, %d messages: %d duplicates", of(1, 5), r.Published, r.Duplicates)
}

func TestF06_drain(t *testing.T) {
	w := begin(t)
	h := simple(w)
	worst, exits := time.Duration(0), 0
	for range of(2, 20) {
		before := w.Starts()
		// An AckWait so long that whatever is not handed back is missed.
		r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "30s"}})
		w.Produce(Load{Count: 200, Script: sleeping(2000)})
		w.Eventually(5*time.Second, "handlers run", func() bool { return w.Starts()-before >= 60 }) // of 64, one is kept free
		r2 := w.StartRelay("r2", h, RelayConfig{Route: M{"ack_wait": "30s", "concurrency": 256}})
		time.Sleep(w.Between(0, 200*ms))
		at := time.Now()
		r1.Signal(syscall.SIGTERM)
		w.Note("TERM r1")
		code, ok := r1.Wait(6 * time.Second)
		if !ok || code != 0 {
			t.Errorf("exit code %d, ended %v, want 0:\n%s", code, ok, tail(r1.LogText(), 10))
		}
		exits++
		w.Eventually(10*time.Second, "rest", func() bool { return w.rest().done() })
		_ = w.ledgers.Refresh()
		for _, run := range w.ledgers.Runs[before:] {
			if run.Instance == "r1" && run.Start.After(at.Add(20*ms)) {
				t.Errorf("I-13: a handler was started %v after SIGTERM", run.Start.Sub(at))
			}
			if run.Instance == "r2" {
				worst = max(worst, run.Start.Sub(at))
			}
		}
		r2.Signal(syscall.SIGTERM)
		if code, ok := r2.Wait(6 * time.Second); !ok || code != 0 {
			t.Errorf("r2: exit code %d, ended %v", code, ok)
		}
		exits++
		w.Done(r1.Proc, r2.Proc)
	}
	r := w.Check(Expect{})
	if worst > time.Second {
		t.Errorf("I-13: what was not started ran elsewhere only after %v, want ≤ 1s", worst)
	}
	w.Figure("%d drains: all exit 0, %d duplicates, unstarted messages elsewhere ≤ %v", exits, r.Duplicates, worst.Round(ms))
}

func TestF07_drainForced(t *testing.T) {
	w := begin(t)
	h := simple(w)
	worst := time.Duration(0)
	type variant struct {
		name  string
		route M
		do    string
	}
	for _, v := range []variant{
		{"http that never answers", M{}, "hang"},
		{"exec that ignores TERM", M{"handler": M{"exec": M{"command": []string{w.Bin.Chaosd, "exec", "-ledger", w.path("exec.ledger"), "-instance", "r1"}}}}, "hang"},
		{"exec with a child in a session of its own", M{"handler": M{"exec": M{"command": []string{w.Bin.Chaosd, "exec", "-ledger", w.path("exec.ledger"), "-instance", "r1"}}}}, "setsid"},
	} {
		w.ledgers.Add(w.path("exec.ledger"))
		before := w.Starts()
		v.route["ack_wait"] = "1s"
		r1 := w.StartRelay("r1", h, RelayConfig{Route: v.route, Top: M{"drain": "500ms"}})
		w.Produce(Load{Count: 3, Script: func(int) ledger.Script { return ledger.Script{Do: v.do, On: "r1"} }})
		w.Eventually(5*time.Second, "handlers run", func() bool { return w.Starts()-before >= 3 })
		at := time.Now()
		r1.Signal(syscall.SIGTERM)
		code, ok := r1.Wait(5 * time.Second)
		took := time.Since(at)
		worst = max(worst, took)
		if !ok || code != 3 || took > 1500*ms {
			t.Errorf("%s: exit code %d (ended %v) after %v, want 3 within 1.5s", v.name, code, ok, took)
		}
		if v.do != "setsid" {
			w.Within(time.Second, func() bool { return len(w.strays()) == 0 }) // what was killed may not be reaped yet
		}
		if s := w.strays(); len(s) > 0 && v.do != "setsid" {
			t.Errorf("%s: left behind: %v", v.name, s)
		} else if len(s) > 0 {
			w.Note("a child in a session of its own outlives relay: %v", s)
			for _, line := range s {
				killStray(line)
			}
		}
		// Somebody else finishes them.
		r2 := w.StartRelay("r2", h, RelayConfig{Route: M{"ack_wait": "1s"}})
		w.Eventually(5*time.Second, "the stuck messages are handled after AckWait", func() bool { return w.rest().done() })
		r2.Signal(syscall.SIGTERM)
		r2.Wait(5 * time.Second)
		w.Done(r1.Proc, r2.Proc)
	}
	w.Check(Expect{Unbounded: true})
	w.Figure("drain 500ms with handlers that never end (http, exec): exit 3 after ≤ %v", worst.Round(ms))
}

func TestF08_secondSignal(t *testing.T) {
	w := begin(t)
	h := simple(w)
	worst := time.Duration(0)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		before := w.Starts()
		r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s"}, Top: M{"drain": "30s"}})
		w.Produce(Load{Count: 100, Script: func(int) ledger.Script { return ledger.Script{Do: "hang", On: "r1"} }})
		w.Eventually(5*time.Second, "handlers run", func() bool { return w.Starts()-before >= 60 }) // of 64, one is kept free
		r1.Signal(syscall.SIGTERM)
		time.Sleep(w.Between(10*ms, 200*ms))
		at := time.Now()
		r1.Signal(sig)
		code, ok := r1.Wait(3 * time.Second)
		worst = max(worst, time.Since(at))
		if !ok || code != 3 {
			t.Errorf("%v: exit code %d, ended %v", sig, code, ok)
		}
		w.Done(r1.Proc)
	}
	if worst > time.Second {
		t.Errorf("the second signal took %v", worst)
	}
	w.StartRelay("r2", h, RelayConfig{Route: M{"ack_wait": "1s"}})
	w.Check(Expect{Unbounded: true})
	w.Figure("second signal while draining: exit 3 after ≤ %v", worst.Round(ms))
}
