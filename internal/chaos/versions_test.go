package chaos

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
	"github.com/relaymq/relay/internal/upgrade"
)

// Versions: instances of the last release and of this one run side by side and take turns, as often and in what order the seed says, while
// some are killed. What one parked or dead-lettered, the other one handles, with the attempts that there were; both replay.

var earlier struct {
	once sync.Once
	file string
	err  error
}

// earlierRelay is the program of the last release.
func earlierRelay(t testing.TB) string {
	t.Helper()
	binaries(t)
	earlier.once.Do(func() { earlier.file, earlier.err = upgrade.Build("../..", upgrade.Last, built.dir) })
	if errors.Is(earlier.err, upgrade.ErrNoHistory) {
		Missing(t, earlier.err.Error())
	}
	if earlier.err != nil {
		t.Fatalf("chaos: %v", earlier.err)
	}
	return earlier.file
}

// versions are the programs, and the two instances of each place, of which one runs.
type versions struct {
	*fleet
	programs [2]string // this one, the last release
	others   []*Relay  // those that do not run; nil: never yet
}

const ofEarlier = "-earlier" // ends the name of an instance of the last release

// change replaces an instance by one of the other version.
func (v *versions) change() {
	i := v.w.Rand.IntN(len(v.relays))
	was := v.relays[i]
	v.w.Cut("TERM " + was.Name + ", the other version follows")
	was.Leave()
	if next := v.others[i]; next != nil {
		next.Start()
		v.relays[i] = next
	} else {
		v.relays[i] = v.w.StartRelay(was.Name+ofEarlier, v.h, RelayConfig{Binary: v.programs[1], URL: v.proxies[i].URL(), NoWait: true, Route: v.route})
	}
	v.relays[i].Keep()
	v.others[i] = was
}

// replay hands over all dead letters, by the program of either version.
func (v *versions) replay() {
	i := v.w.Rand.IntN(2)
	if out, err := v.w.program(v.programs[i], v.relays[0], "dlq", "replay", "--yes"); err != nil {
		v.w.T.Errorf("replay by version %d: %v\n%s", i, err, out)
	}
}

// crossings are how many messages failed, or were found dead, on an instance of one version and went on on one of the other, by which came first.
type crossings struct{ parked, dead [2]int }

func (w *World) crossings() (c crossings) {
	runs := make(map[string][]*ledger.Run)
	for _, run := range w.ledgers.Runs {
		runs[run.ID] = append(runs[run.ID], run)
	}
	do := make(map[string]string)
	for _, p := range w.Pubs() {
		do[p.Script.ID] = p.Script.Do
	}
	version := func(run *ledger.Run) int {
		if strings.HasSuffix(run.Instance, ofEarlier) {
			return 1
		}
		return 0
	}
	for id, list := range runs {
		slices.SortStableFunc(list, func(a, b *ledger.Run) int { return a.Start.Compare(b.Start) })
		for i, run := range list[1:] {
			was := list[i]
			if was.OK || was.End.IsZero() || version(was) == version(run) {
				continue
			}
			if do[id] == "dead" {
				c.dead[version(was)]++
			} else {
				c.parked[version(was)]++
			}
		}
	}
	return c
}

func sideBySide(w *World, l fleetLoad) {
	w.T.Helper()
	l.route = M{"retry": M{"max_attempts": 50, "min": "150ms", "max": "400ms", "jitter": 0.2, "park_after": "50ms"}} // what fails is parked
	l.script = func(i int) ledger.Script {
		switch i % 10 {
		case 3, 6:
			return ledger.Script{Do: "fail", Until: 1 + i/10%3, Sleep: 5}
		case 8:
			return ledger.Script{Do: "dead", Once: true}
		}
		return ledger.Script{Sleep: i * 7 % l.takes}
	}
	v := &versions{programs: [2]string{w.Bin.Relay, earlierRelay(w.T)}, others: make([]*Relay, l.instances)}
	l.kinds = []kind{
		{"change", 6, func(*nemesis) { v.change() }},
		{"change and kill", 2, func(n *nemesis) {
			v.change()
			n.quiet(0, time.Second)
			w.KillRelay(n.relay())
		}},
		{"kill relay", 3, kindNamed("kill relay")},
		{"replay", 4, func(*nemesis) { v.replay() }},
	}
	v.fleet = w.fleet(l)
	v.change() // so that both are there from the start
	v.run(l)
	w.Eventually(2*time.Minute, "dead letters are replayed", func() bool {
		if !w.rest().done() {
			return false
		}
		if len(w.Letters()) == 0 {
			return true
		}
		v.replay()
		return false
	})
	r := w.Check(Expect{Within: time.Minute, Each: true, MaxAttempts: 50, Replayed: true})
	c := w.crossings()
	if Full && slices.Contains([]int{c.parked[0], c.parked[1], c.dead[0], c.dead[1]}, 0) {
		w.T.Errorf("the row tests nothing: %+v", c)
	}
	w.Figure("v0.2.0 beside this version, %d instances on 3 servers, %d messages, %s: from this one to v0.2.0 went %d parked messages and %d dead letters, from v0.2.0 to this one %d and %d; 0 lost, no attempt counted wrongly, %d duplicates ≤ %d; at rest after %v",
		l.instances, r.Published, v.nemesis, c.parked[0], c.dead[0], c.parked[1], c.dead[1], r.Duplicates, r.Bound, r.RestAfter.Round(ms))
}

func TestVersions_sideBySide(t *testing.T) {
	sideBySide(begin(t), of(fleetLoad{instances: 2, count: 700, rate: 150, faults: 5, takes: 40}, fleetLoad{instances: 4, count: 20_000, rate: 200, faults: 60, takes: 60}))
}
