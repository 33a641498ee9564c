package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Fallback: the handler is down for a while, and another one stands in. Every message is handled soon after its publish, the handler
// is asked again, alone, once it works.

// outageLoad is a run with an outage.
type outageLoad struct {
	outage time.Duration
	rate   int // messages a second, each of a key of its own
	most   time.Duration
}

func TestFallback_standsInDuringAnOutage(t *testing.T) {
	// A slice shares two cores with other rows.
	standsIn(begin(t), of(outageLoad{2 * time.Second, 200, 10 * time.Second}, outageLoad{time.Minute, 200, 2 * time.Second}))
}

// With what waits not handed to the fallback, it waits for the end of the outage.
func TestTeeth_lend(t *testing.T) {
	bites(t, "lend", Stalled, func(w *World) { standsIn(w, outageLoad{3 * time.Second, 50, time.Second}) })
}

func standsIn(w *World, l outageLoad) {
	w.T.Helper()
	h := simple(w)
	other := w.startHandler("other", "")
	w.StartRelay("r1", h, RelayConfig{Route: M{
		"retry":      M{"max_attempts": -1, "min": "200ms", "max": "1s"},
		"supervisor": M{"route_trip": M{"of": 20}, "restart": M{"max": "5s"}},
		"fallback":   M{"handler": M{"http": M{"url": other.URL("other")}}, "when": []string{"waiting"}, "concurrency": 16},
	}})
	h.Mode("down")
	n := int(l.outage.Seconds() * float64(l.rate))
	w.Produce(Load{Count: n, Rate: l.rate, Subject: func(i int) string { return fmt.Sprintf("t.out.%d", i) }})
	h.Mode("ok")
	slowest := w.judgeOutage(l)

	// One message that the handler takes ends the outage.
	wakes := 0
	flows := func() bool {
		wakes++
		w.Produce(Load{Count: 1, Subject: func(int) string { return fmt.Sprintf("t.wake.%d", wakes) }})
		for _, run := range w.runs("t.wake.") {
			if run.Instance == "r1" && run.OK {
				return true
			}
		}
		return false
	}
	w.Eventually(30*time.Second, "the handler is asked again", flows)
	w.Produce(Load{Count: 200, Subject: func(i int) string { return fmt.Sprintf("t.then.%d", i) }})
	w.Eventually(30*time.Second, "rest", func() bool { return w.rest().done() })
	for _, run := range w.runs("t.then.") {
		if run.Instance != "r1" {
			w.T.Errorf("%s went to the fallback after the outage", run.ID)
		}
	}
	w.Figure("an outage of %v at %d messages a second: %d messages, the slowest handled after %v; after it the handler alone has them",
		l.outage, l.rate, n, slowest.Round(ms))
}

// ranOK is a run, and of which message.
type ranOK struct {
	ID, Instance string
	OK           bool
	End          time.Time
}

// runs are those of messages with such subjects.
func (w *World) runs(prefix string) (list []ranOK) {
	w.T.Helper()
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	of := make(map[string]bool)
	for _, p := range w.Pubs() {
		if strings.HasPrefix(p.Subject, prefix) {
			of[p.Script.ID] = true
		}
	}
	for _, run := range w.ledgers.Runs {
		if of[run.ID] {
			list = append(list, ranOK{run.ID, run.Instance, run.OK, run.End})
		}
	}
	return list
}

// judgeOutage waits until all messages of the outage are handled, and fails the run with those for which it took too long.
func (w *World) judgeOutage(l outageLoad) (slowest time.Duration) {
	w.T.Helper()
	done := make(map[string]time.Time)
	w.Within(l.most+30*time.Second, func() bool {
		clear(done)
		for _, run := range w.runs("t.out.") {
			if at, ok := done[run.ID]; run.OK && (!ok || run.End.Before(at)) {
				done[run.ID] = run.End
			}
		}
		for _, p := range w.Pubs() {
			if _, ok := done[p.Script.ID]; !ok {
				return false
			}
		}
		return true
	})
	late := 0
	for _, p := range w.Pubs() {
		at, ok := done[p.Script.ID]
		if !ok {
			at = time.Now()
		}
		d := at.Sub(p.At)
		slowest = max(slowest, d)
		if d > l.most {
			late++
		}
	}
	if late > 0 {
		w.Wrong(Stalled, "%d messages were not handled within %v, the slowest took %v", late, l.most, slowest.Round(ms))
	}
	return slowest
}
