package chaos

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows of docs/reliability.md that need a Go handler, and what kills processes (F86).

// embedded starts a server, the stream, and n embedding programs that are started again when they die.
func embedded(w *World, n int, conf M) (list []*Embedded) {
	w.T.Helper()
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	for i := range n {
		e := w.StartEmbedded(fmt.Sprintf("e%d", i+1), conf)
		e.Keep()
		list = append(list, e)
	}
	return list
}

// noRestarts checks I-09: the process lives.
func noRestarts(w *World, list []*Embedded) {
	w.T.Helper()
	for _, e := range list {
		if n := e.Restarts(); n > 0 {
			w.T.Errorf("I-09: %s died %d times:\n%s", e.Name, n, tail(e.LogText(), 15))
		}
	}
}

func TestF51_panics(t *testing.T) {
	w := begin(t)
	list := embedded(w, 1, nil)
	kinds := []string{"panic", "panicerror", "panicnil", "panicruntime", "panicpanic"}
	n := of(200, 20_000)
	w.Produce(Load{
		Count: n,
		// Few panics for each key: one whose every message ends its child waits longer each time, as it should.
		Subject: func(i int) string { return fmt.Sprintf("t.%d", i%5003) },
		Script: func(i int) ledger.Script {
			if i%10 == 0 {
				return ledger.Script{Do: kinds[i/10%len(kinds)], Until: 1}
			}
			return ledger.Script{}
		},
	})
	w.Eventually(30*time.Second, "a handler starts, so that all that stays open is", func() bool { return w.Starts() > 0 })
	before := list[0].fds()
	r := w.Check(Expect{Within: time.Minute})
	noRestarts(w, list)
	if after := list[0].fds(); after > before+5 {
		t.Errorf("I-11: %d open files, before %d", after, before)
	}
	w.Figure("%d panics of 5 kinds among %d messages: 1 pid, %d dead letters, %d duplicates", n/10, n, r.Dead, r.Duplicates)
}

func TestF51_panicsForEver(t *testing.T) {
	w := begin(t)
	list := embedded(w, 1, nil)
	w.Produce(Load{Count: 20, Subject: func(i int) string { return fmt.Sprintf("t.%d", i) }, Script: func(i int) ledger.Script {
		if i%4 == 0 {
			return ledger.Script{Do: "panic"}
		}
		return ledger.Script{}
	}})
	w.Check(Expect{Within: 20 * time.Second, Each: true})
	noRestarts(w, list)
	letters := w.Letters()
	if len(letters) != 5 {
		t.Errorf("%d dead letters, want 5", len(letters))
	}
	for _, l := range letters {
		if len(l.Stack) == 0 || len(l.Stack) > 16<<10 || l.Attempts != 3 {
			t.Errorf("F51: a stack of %d bytes, %d attempts", len(l.Stack), l.Attempts)
		}
	}
	w.Figure("messages that always panic: %d of 5 dead-lettered after 3 attempts, each with its stack ≤ 16 KiB", len(letters))
}

func TestF52_goexit(t *testing.T) {
	w := begin(t)
	list := embedded(w, 1, nil)
	n := of(200, 10_000)
	// Each on a key of its own: a key whose every message ends its child waits longer each time, as it should.
	w.Produce(Load{Count: n, Subject: func(i int) string { return fmt.Sprintf("t.%d", i) }, Script: func(i int) ledger.Script {
		if i%10 == 0 {
			return ledger.Script{Do: "goexit", Until: 1}
		}
		return ledger.Script{}
	}})
	r := w.Check(Expect{Within: time.Minute})
	noRestarts(w, list)
	w.Figure("%d Goexits among %d messages: 1 pid, %d dead letters", n/10, n, r.Dead)
}

// F54: handlers that ignore their timeout do not eat the route's slots for ever.
func TestF54_hang(t *testing.T) {
	w := begin(t)
	list := embedded(w, 1, M{"Timeout": 300 * ms, "AckWait": time.Second, "Concurrency": 16, "MaxAttempts": 1, "MaxStuck": 8})
	w.Produce(Load{Count: 200, Subject: func(i int) string { return fmt.Sprintf("t.%d", i) }, Script: func(i int) ledger.Script {
		if i%50 == 0 {
			return ledger.Script{Do: "hang"}
		}
		return ledger.Script{Sleep: 5}
	}})
	at := time.Now()
	r := w.Check(Expect{Within: 15 * time.Second, MaxAttempts: 1, Each: true})
	noRestarts(w, list)
	if r.Dead != 4 {
		t.Errorf("F54: %d dead letters, want the 4 that hang", r.Dead)
	}
	rest := time.Since(at)
	// And beyond max_stuck the route stops and says so.
	w.Produce(Load{Count: 12, Subject: func(i int) string { return fmt.Sprintf("t.x%d", i) }, Script: func(int) ledger.Script { return ledger.Script{Do: "hang"} }})
	took, ok := w.Within(10*time.Second, func() bool { return strings.Contains(list[0].LogText(), "route stopped") })
	if !ok {
		t.Errorf("F54: the route with more than 8 stuck handlers does not stop within %v:\n%s", took, tail(list[0].LogText(), 5))
	}
	list[0].Signal(syscall.SIGTERM)
	w.Figure("4 of 200 handlers hang: the others handled, the 4 dead-lettered, all after %v; the route stops %v after its 9th", rest.Round(ms), took.Round(ms))
}

// F57: a handler that changes the bytes it was given.
func TestF57_mutation(t *testing.T) {
	w := begin(t)
	list := embedded(w, 1, nil)
	w.Produce(Load{Count: 20, Script: func(int) ledger.Script { return ledger.Script{Do: "mutate"} }})
	// All fail: on a busy machine the route trips, and what it asks then spends no attempt.
	r := w.Check(Expect{Each: true, ExtraStarts: 3})
	noRestarts(w, list)
	w.Figure("20 handlers that overwrite body and headers: %d dead letters, %d damaged", r.Dead, len(r.Wrong[Damaged]))
}

// F58: a handler of 10 × AckWait is started once.
func TestF58_longHandlers(t *testing.T) {
	w := begin(t)
	h := simple(w)
	wait := of("2s", "3s") // on a busy machine an instance, or the server, may stand still for two thirds of a second
	w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": wait, "concurrency": of(100, 1000), "timeout": "60s"}})
	w.StartRelay("r2", h, RelayConfig{Route: M{"ack_wait": wait, "concurrency": 10, "timeout": "60s"}})
	n := of(100, 1000)
	w.Produce(Load{Count: n, Script: sleeping(of(6000, 30_000))})
	r := w.Check(Expect{Within: 90 * time.Second})
	if r.Starts != n {
		t.Errorf("I-15: %d starts of %d messages", r.Starts, n)
	}
	w.Figure("%d handlers of %d × AckWait: %d starts, %d duplicates", n, of(3, 10), r.Starts, r.Duplicates)
}

// F73: the endpoint answers 200 when the timeout is over. That is one failure and one duplicate, under the same id.
func TestF73_lateAnswer(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{Route: M{"timeout": "1s", "ack_wait": "3s"}})
	n := of(40, 1000)
	w.Produce(Load{Count: n, Subject: func(i int) string { return fmt.Sprintf("t.%d", i) }, Script: func(int) ledger.Script {
		return ledger.Script{Do: "late", Once: true, Sleep: 1500, SleepOK: 5}
	}})
	w.Eventually(time.Minute, "the late answers are given", func() bool { return w.Ends() >= 2*n })
	r := w.Check(Expect{Within: time.Minute, Bound: &n})
	if r.Starts != 2*n || r.Dead > 0 {
		t.Errorf("F73: %d starts of %d messages, %d dead letters", r.Starts, n, r.Dead)
	}
	w.Figure("%d answers after 1.5 × timeout: %d starts, %d duplicates, %d dead letters", n, r.Starts, r.Duplicates, r.Dead)
}

// F60: exec handlers that leave children behind.
func TestF60_orphans(t *testing.T) {
	w := begin(t)
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	book := w.path("exec.ledger")
	w.ledgers.Add(book)
	r1 := w.StartRelay("r1", nil, RelayConfig{Route: M{
		"handler": M{"exec": M{"command": []string{w.Bin.Chaosd, "exec", "-ledger", book, "-instance", "r1"}}}, "timeout": "5s", "concurrency": 8,
	}})
	w.Produce(Load{Count: of(20, 500), Script: func(i int) ledger.Script { return ledger.Script{Do: []string{"daemon", "ok", "fail", "ok"}[i%4]} }})
	r := w.Check(Expect{Within: of(15*time.Second, time.Minute)})
	// And when relay itself is killed in the middle.
	before := w.Starts()
	w.Produce(Load{Count: 8, Script: func(int) ledger.Script { return ledger.Script{Do: "hang", Once: true} }})
	w.Eventually(10*time.Second, "they hang", func() bool { return w.Starts()-before >= 7 }) // of 8 slots, one is kept free
	w.KillRelay(r1)
	left, ok := w.Within(2*time.Second, func() bool { return len(w.strays()) == 0 })
	if !ok {
		t.Errorf("%s: kill -9 of relay leaves %v", Orphan, w.strays())
		for _, s := range w.strays() {
			killStray(s)
		}
	}
	w.Figure("exec handlers with daemons: %d handled, %d dead-lettered, 0 orphans; after kill -9 of relay its children are gone within %v", r.Handled, r.Dead, left.Round(ms))
}
