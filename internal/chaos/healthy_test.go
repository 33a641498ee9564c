package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Healthy is the bound that users rely on: whatever share of the keys fails, hangs or is refused, a healthy message of a key of
// its own starts within one probe interval and two seconds of its publish, and at full rate once one has succeeded.

const (
	probeInterval = 5 * time.Second
	roundPatience = 2 * time.Second
)

// trouble is what is wrong beside the healthy messages.
type trouble struct {
	instances, bad int
	stash          int
	restart        time.Duration
	of             int
	timeout        time.Duration
	first          bool // all bad messages are published before the first healthy one
	fails, hangs   int  // of a hundred bad ones; the rest is refused
}

func drawTrouble(r *rand.Rand, instances int) trouble {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	t := trouble{
		instances: instances, bad: pick(60, 100, 300), stash: pick(1, 10, 50, 1000), of: pick(10, 20, 50),
		restart: time.Duration(pick(1, 2, 5, 60)) * time.Second, timeout: time.Duration(pick(500, 1000)) * ms, first: r.IntN(2) == 0,
		fails: r.IntN(101),
	}
	t.hangs = r.IntN(101-t.fails) / 4 // more new ones that hang at once than there are slots take the slots of all
	return t
}

func (c trouble) script(r *rand.Rand) ledger.Script {
	switch n := r.IntN(100); {
	case n < c.fails:
		return ledger.Script{Do: "fail"}
	case n < c.fails+c.hangs:
		return ledger.Script{Do: "hang"}
	}
	return ledger.Script{Do: "status503"}
}

// healthy runs one draw.
func healthy(w *World, c trouble) {
	w.T.Helper()
	h := simple(w)
	for i := range c.instances {
		w.StartRelay(fmt.Sprintf("r%d", i+1), h, RelayConfig{Route: M{
			"timeout": c.timeout.String(), "stash": M{"messages": c.stash}, "retry": M{"max_attempts": -1, "min": "500ms", "max": "10s"},
			"supervisor": M{"restart": M{"max": c.restart.String()}, "route_trip": M{"of": c.of}},
		}, NoWait: i > 0})
	}
	w.Note("%+v", c)
	n, good := c.bad+60, 0
	var kinds []bool // is message i healthy?
	for i := range n {
		kinds = append(kinds, i >= c.bad)
	}
	if !c.first {
		w.Rand.Shuffle(n, func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	}
	w.Produce(Load{
		Count: n, Rate: 20,
		Subject: func(i int) string {
			if i < n && kinds[i] {
				return fmt.Sprintf("t.good.%d", i)
			}
			return fmt.Sprintf("t.bad.%d", i)
		},
		Script: func(i int) ledger.Script {
			if i < n && kinds[i] {
				return ledger.Script{}
			}
			return c.script(w.Rand)
		},
	})
	waited := w.starts("t.good.", probeInterval+roundPatience, &good)
	// And at full rate once one has succeeded.
	began := time.Now()
	w.Produce(Load{Count: 2000, Subject: func(i int) string { return fmt.Sprintf("t.then.%d", i) }})
	then := 0
	w.starts("t.then.", probeInterval+roundPatience, &then)
	took := time.Since(began)
	w.Figure("%d instances, %d bad keys (%d %% fail, %d %% hang, the rest 503), stash %d, restart.max %v, of %d, bad first %v: %d healthy messages started, the last after %v; 2,000 more within %v",
		c.instances, c.bad, c.fails, c.hangs, c.stash, c.restart, c.of, c.first, good, waited.Round(ms), took.Round(ms))
}

// starts waits until each message of these subjects has started, and fails the run with those that waited for longer than most.
func (w *World) starts(prefix string, most time.Duration, count *int) (slowest time.Duration) {
	w.T.Helper()
	slack := of(4*time.Second, time.Second) // a slice shares two cores with other rows
	var late []string
	look := func() (waiting int) {
		if err := w.ledgers.Refresh(); err != nil {
			w.T.Fatal(err)
		}
		first := make(map[string]time.Time)
		for _, run := range w.ledgers.Runs {
			if at, ok := first[run.ID]; !ok || run.Start.Before(at) {
				first[run.ID] = run.Start
			}
		}
		late, slowest, *count = nil, 0, 0
		for _, p := range w.Pubs() {
			if !strings.HasPrefix(p.Subject, prefix) {
				continue
			}
			at, ok := first[p.Script.ID]
			if !ok {
				waiting++
				at = time.Now()
			} else {
				*count++
			}
			d := at.Sub(p.At)
			slowest = max(slowest, d)
			if d > most+slack {
				late = append(late, fmt.Sprintf("%s: %v, started %v", p, d.Round(ms), ok))
			}
		}
		return waiting
	}
	w.Within(most+slack+2*time.Second, func() bool { return look() == 0 })
	if len(late) > 0 {
		w.Wrong(Stalled, "%d healthy messages waited for more than %v:\n  %s", len(late), most+slack, strings.Join(late[:min(len(late), 10)], "\n  "))
	}
	return slowest
}

func TestHealthy_whateverElseFails(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 3} {
		for range of(1, 3) {
			t.Run(fmt.Sprintf("%d instances", instances), func(t *testing.T) {
				w := begin(t)
				healthy(w, drawTrouble(w.Rand, instances))
			})
		}
	}
}

func TestTeeth_fresh(t *testing.T) {
	bites(t, "fresh", Stalled, func(w *World) {
		healthy(w, trouble{instances: 1, bad: 60, stash: 50, restart: 2 * time.Second, of: 20, timeout: time.Second, first: true, fails: 100})
	})
}
