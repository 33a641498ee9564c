package chaos

import (
	"encoding/json"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Hand-over: an operator gives an ordered route from one instance to another under load, again and again, to a certain one or to any. In between
// the holder is killed or frozen, also in the middle of a hand-over. A hand-over is no fault: it may cost neither a start nor a duplicate.

// handovers is what became of the orders.
type handovers struct {
	given, refused int
	longest        time.Duration
}

// holder waits until an instance says that it has the route.
func (n *nemesis) holder() (r *Relay) {
	n.w.T.Helper()
	n.w.Eventually(time.Minute, "an instance has the route", func() bool {
		for _, r = range n.relays {
			if r.Metrics("relay_route_holder") > 0 {
				return true
			}
		}
		return false
	})
	return r
}

// program runs relay's command line with the configuration of r.
func (w *World) program(bin string, r *Relay, args ...string) (out []byte, err error) {
	out, err = exec.Command(bin, append(args, "-c", r.conf)...).CombinedOutput()
	w.Note("relay %v: %v %s", args, err, tail(string(out), 1))
	return out, err
}

// to is an instance that stands by, half of the time; empty: any is to have it.
func (n *nemesis) to() string {
	if n.w.Rand.IntN(2) == 0 {
		return ""
	}
	var grid struct{ Routes []struct{ Standbys []string } }
	out, err := exec.Command(n.w.Bin.Relay, "grid", "--json", "-c", n.relays[0].conf).Output()
	if err != nil || json.Unmarshal(out, &grid) != nil || len(grid.Routes) != 1 || len(grid.Routes[0].Standbys) == 0 {
		return ""
	}
	list := grid.Routes[0].Standbys
	return list[n.w.Rand.IntN(len(list))]
}

// order has the route handed over, and waits until that is done.
func (n *nemesis) order(h *handovers, to string) bool {
	args := []string{"handover", "work", "--timeout", "20s"}
	if to != "" {
		args = append(args, "--to", to)
	}
	began := time.Now()
	if _, err := n.w.program(n.w.Bin.Relay, n.relays[0], args...); err != nil {
		h.refused++
		return false
	}
	h.given++
	h.longest = max(h.longest, time.Since(began))
	return true
}

// kinds of the row.
func (h *handovers) kinds() []kind {
	// during does something to the holder at a random moment of a hand-over.
	during := func(do func(n *nemesis, r *Relay)) func(*nemesis) {
		return func(n *nemesis) {
			r := n.holder()
			to, after := n.to(), n.w.Between(0, 400*ms)
			wait := background(func() { n.order(h, to) }) // which may be refused, or come to nothing
			time.Sleep(after)
			do(n, r)
			wait()
		}
	}
	kill := func(n *nemesis, r *Relay) { n.w.KillRelay(r) }
	freeze := func(n *nemesis, r *Relay) { n.w.Pause(r.Proc, n.w.Between(500*ms, 5*time.Second)) }
	return []kind{
		{"hand over", 12, func(n *nemesis) {
			// After a fault nobody may stand by yet, or the holder not be able to prove that it is that.
			n.w.Eventually(time.Minute, "the route is handed over", func() bool { return n.order(h, n.to()) })
		}},
		{"kill in a hand-over", 3, during(kill)},
		{"freeze in a hand-over", 3, during(freeze)},
		{"kill the holder", 1, func(n *nemesis) { kill(n, n.holder()) }},
		{"freeze the holder", 1, func(n *nemesis) { freeze(n, n.holder()) }},
	}
}

// judgeTwice fails the run with each message that was started more often than its script says and was not in flight at a fault. A request that was on its way
// when its instance was stopped begins after the fault.
func (w *World) judgeTwice() {
	runs := make(map[string][]*ledger.Run)
	for _, run := range w.ledgers.Runs {
		runs[run.ID] = append(runs[run.ID], run)
	}
	isLate := w.lateArrivals()
	for _, p := range w.Pubs() {
		list := runs[p.Script.ID]
		slices.SortStableFunc(list, func(a, b *ledger.Run) int { return a.Start.Compare(b.Start) })
		if len(list) > p.starts() && !slices.ContainsFunc(w.faults, func(f *Fault) bool { return f.hit(list) }) && !slices.ContainsFunc(list, isLate) {
			w.Wrong(Attempts, "%s was in flight at no fault: %s", p, describe(list))
		}
	}
}

// standstill is the longest time between two starts.
func (w *World) standstill() (longest time.Duration) {
	starts := make([]time.Time, 0, len(w.ledgers.Runs))
	for _, run := range w.ledgers.Runs {
		starts = append(starts, run.Start)
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i := 1; i < len(starts); i++ {
		longest = max(longest, starts[i].Sub(starts[i-1]))
	}
	return longest
}

func handover(w *World, l fleetLoad) {
	w.T.Helper()
	h := &handovers{}
	l.set("order", "key")
	l.kinds = h.kinds()
	f := w.fleet(l)
	f.run(l)
	r := w.Check(Expect{Within: 2 * time.Minute, Each: true, MaxAttempts: 50})
	w.judgeKeys()
	w.judgeTwice()
	holders := w.judgeFences()
	w.Figure("hand-overs, %d instances on 3 servers, %d messages on 40 keys, %s: %d handed over within %v each, %d refused; %d holders, 0 out of order, 0 lost, %d duplicates ≤ %d; longest standstill %v; at rest after %v",
		l.instances, r.Published, f.nemesis, h.given, h.longest.Round(ms), h.refused, holders, r.Duplicates, r.Bound, w.standstill().Round(ms), r.RestAfter.Round(ms))
}

func TestHandover_underLoad(t *testing.T) {
	handover(begin(t), of(fleetLoad{instances: 3, count: 700, rate: 150, faults: 5, takes: 40}, fleetLoad{instances: 4, count: 20_000, rate: 200, faults: 50, takes: 60}))
}

// waited is the longest time from the confirmation of a publish to the first start of its handler.
func (w *World) waited() (longest time.Duration, of string) {
	first := make(map[string]time.Time)
	for _, run := range w.ledgers.Runs {
		if at, ok := first[run.ID]; !ok || run.Start.Before(at) {
			first[run.ID] = run.Start
		}
	}
	for _, p := range w.Pubs() {
		if at, ok := first[p.Script.ID]; ok && at.Sub(p.At) > longest {
			longest, of = at.Sub(p.At), p.String()
		}
	}
	return longest, of
}

// A hand-over without any fault: no message waits longer than a second for its handler, whoever has the route.
func TestHandover_noMessageWaitsASecond(t *testing.T) {
	w := begin(t)
	l := of(fleetLoad{instances: 3, count: 1500, rate: 150, faults: 5, takes: 40}, fleetLoad{instances: 4, count: 20_000, rate: 400, faults: 25, takes: 60})
	h := &handovers{}
	l.set("order", "key")
	l.kinds = h.kinds()[:1]
	l.script = func(i int) ledger.Script { return ledger.Script{Sleep: i * 7 % l.takes} }
	f := w.fleet(l)
	f.run(l)
	r := w.Check(Expect{Within: 2 * time.Minute, Each: true, MaxAttempts: 50})
	w.judgeKeys()
	w.judgeTwice()
	longest, of := w.waited()
	if longest > time.Second {
		t.Errorf("%s waited %v for its handler", of, longest.Round(ms))
	}
	w.Figure("hand-overs under load, %d instances on 3 servers, %d messages on 40 keys: %d handed over within %v each, %d refused; %d duplicates; a message waited %v at most",
		l.instances, r.Published, h.given, h.longest.Round(ms), h.refused, r.Duplicates, longest.Round(ms))
}
