package chaos

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// F02: relay is killed at each step of a settlement, by itself (package failpoint).

// settleSteps are those of the service, with what the route must be like to come to them.
var settleSteps = map[string]M{
	"handled":        nil,
	"acked":          nil,
	"recording":      nil,
	"recorded":       nil,
	"given back":     nil,
	"forgetting":     nil,
	"dead-lettering": nil,
	"dead-lettered":  nil,
	"parking":        parking,
	"parked":         parking,
	"giving back":    {"supervisor": M{"trip_after": 1, "route_trip": M{"of": 0}, "dead_trip": M{"of": 0}, "forward": "giveback"}},
}

// replaySteps are those of relay dlq replay.
var replaySteps = []string{"handing over", "handed over", "removed"}

var parking = M{"retry": M{"max_attempts": 3, "min": "400ms", "max": "400ms", "jitter": 0, "park_after": "100ms"}}

// The list of steps is complete: one failpoint each, and each has its turn.
func TestF02_stepsAreAll(t *testing.T) {
	at := regexp.MustCompile(`failpoint\.At\("([^"]*)"\)`)
	var found []string
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range at.FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := append(slices.Collect(maps.Keys(settleSteps)), replaySteps...)
	slices.Sort(found)
	found = slices.Compact(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("steps in the sources: %q\nsteps of this row:    %q", found, want)
	}
}

func TestF02_killedAtEachStep(t *testing.T) {
	w := begin(t)
	h := simple(w)
	bin := weakRelay(t)
	steps := slices.Sorted(maps.Keys(settleSteps))
	if !Full {
		// Of the settlement's, those around what must not happen twice; the others are in make chaos.
		steps = []string{"recorded", "dead-lettered"}
	}
	n := of(30, 120)
	for _, step := range steps {
		for round := range of(1, 3) {
			route := M{"ack_wait": "1s"}
			maps.Copy(route, settleSteps[step])
			name := strings.ReplaceAll(step, " ", "-") + fmt.Sprint(round)
			w.Produce(Load{
				Count:   n,
				Subject: func(i int) string { return fmt.Sprintf("t.%s.%d", name, i/4) },
				Script: func(i int) ledger.Script {
					switch i % 3 {
					case 0:
						return ledger.Script{Do: "fail", Until: 1, Sleep: 5}
					case 1:
						return ledger.Script{Do: "dead", Sleep: 5}
					}
					return ledger.Script{Sleep: 5}
				},
			})
			r := w.StartRelay(name, h, RelayConfig{
				Binary: bin, NoWait: true, Route: route, Env: []string{fmt.Sprintf("CHAOS_KILL_AT=%s:%d", step, 1+w.Rand.IntN(n/6))},
			})
			if code, ended := r.Wait(15 * time.Second); !ended || code != 128+9 {
				t.Fatalf("F02: relay did not come to the step %q (exit %d, ended %v)", step, code, ended)
			}
			w.fault("killed at "+step, time.Now(), w.InFlight()).Crash = true
			next := w.StartRelay(name+"-next", h, RelayConfig{Route: route})
			if _, ok := w.Within(20*time.Second, func() bool { return w.rest().done() }); !ok {
				t.Fatalf("%s: after a kill at %q: %s", NotDrained, step, w.rest())
			}
			w.Done(r.Proc, next.Proc)
		}
	}
	r := w.Check(Expect{ExtraStarts: 3})
	w.Figure("killed %d times at %d steps (%s): 0 lost of %d, %d dead letters, each once, %d duplicates ≤ %d",
		len(steps)*of(1, 3), len(steps), strings.Join(steps, ", "), r.Published, r.Dead, r.Duplicates, r.Bound)
}

func TestF02_replayKilledAtEachStep(t *testing.T) {
	w := begin(t)
	h := simple(w)
	bin := weakRelay(t)
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s"}})
	steps := replaySteps
	if !Full {
		steps = replaySteps[1:2]
	}
	n := of(20, 200)
	for i, step := range steps {
		w.Produce(Load{Count: n, Script: func(int) ledger.Script { return ledger.Script{Do: "dead", Once: true} }})
		w.Eventually(20*time.Second, "dead letters", func() bool { return len(w.Letters()) == n })
		for j, env := range []string{fmt.Sprintf("CHAOS_KILL_AT=%s:%d", step, 1+w.Rand.IntN(n/2)), "CHAOS_KILL_AT="} {
			cli := w.startProc(fmt.Sprintf("replay%d-%d", i, j), procOptions{env: []string{env}}, bin, "dlq", "replay", "--yes", "-c", r1.conf)
			code, ended := cli.Wait(30 * time.Second)
			if want := []int{128 + 9, 0}[j]; !ended || code != want {
				t.Fatalf("replay, %s: exit %d (ended %v), want %d: %s", env, code, ended, want, tail(cli.LogText(), 5))
			}
			w.Note("replay with %s", env)
			w.Done(cli)
		}
		w.Eventually(20*time.Second, "nothing is left", func() bool { return w.rest().done() && len(w.Letters()) == 0 })
	}
	zero := 0
	r := w.Check(Expect{Replayed: true, Bound: &zero})
	if r.Handled != r.Published || r.Dead != 0 {
		t.Errorf("I-19: %d of %d handled after the replay, %d left", r.Handled, r.Published, r.Dead)
	}
	w.Figure("replay killed at %s, and begun anew: %d of %d handled, %d duplicates", strings.Join(steps, ", "), r.Handled, r.Published, r.Duplicates)
}
