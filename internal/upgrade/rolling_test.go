package upgrade

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/natstest"
)

// fleet are two instances, and what happened to them.
type fleet struct {
	*world
	a, b    *process
	earlier []*process // all that were of the last release
	kills   []time.Time
}

// up starts a relay and waits until both are ready.
func (f *fleet) up(commit string) *process {
	f.t.Helper()
	p := f.start(commit)
	f.ready(2)
	return p
}

func (f *fleet) start(commit string) *process {
	f.t.Helper()
	p := f.run(commit)
	if commit == Last {
		f.earlier = append(f.earlier, p)
	}
	return p
}

// kill ends an instance without a word, and starts another one of the same version.
func (f *fleet) kill(p **process, commit string) {
	f.t.Helper()
	f.mu.Lock()
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	_ = (*p).cmd.Process.Kill()
	<-(*p).done
	*p = f.up(commit)
}

// replace stops an instance as an operator does, and starts one of another version.
func (f *fleet) replace(p **process, commit string) {
	f.t.Helper()
	(*p).stop()
	*p = f.up(commit)
}

// grid is what relay grid --json says, as far as it is looked at.
type grid struct {
	Instances []struct{ Instance, State, Version string }
	Routes    []struct {
		Route, Holder string
		Standbys      []string
	}
	Limits []struct{ Parts map[string]int }
	Notes  []string
}

func (f *fleet) grid() (g grid) {
	f.t.Helper()
	if err := json.Unmarshal([]byte(f.must("", "grid", "--json")), &g); err != nil {
		f.t.Fatal(err)
	}
	return g
}

// seen checks what the present version says of an instance of the last release that is beside it, and of who has the ordered route.
func (f *fleet) seen() {
	f.t.Helper()
	var g grid
	f.eventually("one instance has the ordered route and the other one stands by", func() bool {
		g = f.grid()
		return len(g.Routes) == 1 && g.Routes[0].Holder != "" && len(g.Routes[0].Standbys) == 1
	})
	version := map[string]string{}
	for _, i := range g.Instances {
		if i.State == "ready" {
			version[i.Instance] = i.Version
		}
	}
	earlier := 0
	for _, v := range version {
		if v == "" {
			earlier++
		}
	}
	if len(version) != 2 || earlier != 1 || !slices.ContainsFunc(g.Notes, func(n string) bool {
		return strings.Contains(n, "different versions") && strings.Contains(n, "an earlier version (")
	}) || len(g.Limits) != 1 || len(g.Limits[0].Parts) != 2 {
		f.t.Errorf("relay grid says %+v", g)
	}
	text := f.must("", "grid")
	if !regexp.MustCompile(`(?m)^\S+ +ready +\S+ +- `).MatchString(text) || !strings.Contains(text, "note: instances run different versions") {
		f.t.Errorf("relay grid prints\n%s", text)
	}
	holder := g.Routes[0].Holder
	switch out, err := f.relay("", "handover", "ordered"); {
	case version[holder] == "" && (err == nil || !strings.Contains(out, "runs an earlier version, which does not know this order")):
		f.t.Errorf("the holder does not know the order, and relay handover says %s", out)
	case version[holder] != "" && err != nil:
		f.t.Errorf("the other instance is of the last release: %s", out)
	}
}

// Instances of two releases run side by side, each is killed and comes back, and the change is made and taken back one after the other.
func TestUpgrade_rolling(t *testing.T) {
	t.Parallel()
	for _, commit := range []string{Last, ""} { // built before anything runs: it takes half a minute in a fresh clone
		binary(t, commit)
	}
	w := newWorld(t)
	w.on(natstest.Start(t), "")
	w.answers(func(body string) int {
		tries := w.failed[body]
		switch word, _, _ := strings.Cut(body, " "); {
		case word == "dead" && tries < 1:
			return 422
		case word == "fails" && tries < 2, word == "again" && tries < 1:
			return 503
		case word == "ordered-b" && tries < 1 && strings.HasSuffix(body, "7"): // the others of its key wait for it
			return 503
		}
		return 200
	})
	f := &fleet{world: w}
	f.a, f.b = f.start(Last), f.start(Last)
	f.ready(2)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	published := make(chan map[string]int, 1)
	go func() { published <- f.traffic(ctx) }()
	later := 0
	delay := func(commit string) {
		f.must(commit, "pub", "orders.eu", fmt.Sprintf("later %d", later), "--in", "3s")
		later++
	}
	for _, commits := range [][2]string{{Last, ""}, {"", Last}} {
		from, to := commits[0], commits[1]
		delay(from)
		f.replace(&f.a, to)
		f.seen()
		f.must(from, "dlq", "replay", "--yes")
		delay(to)
		f.kill(&f.b, from) // beside the other release
		f.kill(&f.a, to)
		f.must(to, "dlq", "replay", "--yes")
		f.seen()
		delay(from)
		f.replace(&f.b, to)
		if to != "" {
			continue
		}
		out := f.must("", "handover", "ordered") // both know it
		t.Logf("%s", out)
		f.kill(&f.a, "")
		if g := f.grid(); slices.ContainsFunc(g.Notes, func(n string) bool { return strings.Contains(n, "different versions") }) {
			t.Errorf("all are of one version: %v", g.Notes)
		}
	}
	stop()
	want := <-published
	want["later"] = later
	missing := func() map[string]int {
		have := map[string]int{}
		w.mu.Lock()
		for body := range w.handled {
			word, _, _ := strings.Cut(body, " ")
			have[word]++
		}
		w.mu.Unlock()
		left := map[string]int{}
		for word, n := range want {
			if have[word] != n && word != "dead" {
				left[word] = n - have[word]
			}
		}
		return left
	}
	text := ""
	w.eventually("all are handled", func() bool { left := missing(); text = fmt.Sprint("missing: ", left); return len(left) == 0 }, &text)
	f.must("", "dlq", "replay", "--yes")
	w.eventually("dead letters are replayed", func() bool { return w.messages("RELAY_DLQ") == 0 })
	w.eventually("nothing waits any more", func() bool { return w.messages("RELAY_RETRY") == 0 })
	f.a.stop()
	f.b.stop()
	ticks := w.ticked(true)
	w.sound()
	if n := w.handled["tick"]; n > ticks+len(f.kills) { // one may be in flight at each kill, and comes again
		t.Errorf("the schedule published %d messages, and %d were handled", ticks, n)
	}
	twice := 0
	for body, times := range w.handled {
		if times == 1 || body == "tick" {
			continue
		}
		twice += times - 1
		at, late := w.at[body], time.Second
		if strings.HasPrefix(body, "fails") || strings.HasPrefix(body, "again") {
			// It was parked, and the delivery before not acknowledged yet: its copy comes after its delay, or the delivery after ack_wait.
			late += 8 * time.Second
		}
		if !slices.ContainsFunc(f.kills, func(kill time.Time) bool {
			return at.After(kill.Add(-3*time.Second)) && at.Before(kill.Add(late))
		}) {
			t.Errorf("%s was handled %d times, first at %v, and not in flight when an instance was killed: %v", body, times, at, f.kills)
		}
	}
	for i, p := range f.earlier {
		log := strings.Split(p.log.String(), "\n")
		if len(log) > 300 {
			t.Errorf("instance %d of the last release wrote %d lines", i, len(log))
		}
		for _, line := range log {
			if strings.Contains(line, "panic") || strings.Contains(line, "alone") || strings.Contains(line, `"level":"ERROR"`) && !strings.Contains(line, `"dead-lettered"`) {
				t.Errorf("instance %d of the last release wrote %s", i, line)
			}
		}
	}
	t.Logf("%v messages, %d ticks, %d kills, %d duplicates, %d ran at once under the limit", want, ticks, len(f.kills), twice, w.most)
}

// traffic publishes messages of all kinds until ctx is done, and returns how many.
func (f *fleet) traffic(ctx context.Context) map[string]int {
	n := map[string]int{}
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return n
		case <-time.After(10 * time.Millisecond):
		}
		for _, m := range []struct {
			word, subject string
			every         int
		}{
			{"ok", "orders.eu", 1}, {"fails", "orders.us", 3}, {"again", "stays.eu", 3}, {"dead", "stays.us", 50}, {"limited", "limited.eu", 3},
			{"ordered-a", "ordered.a", 4}, {"ordered-b", "ordered.b", 10}, {"ordered-c", "ordered.c", 10}, {"long", "long.eu", 20},
		} {
			if i%m.every > 0 {
				continue
			}
			if _, err := f.js.Publish(f.t.Context(), m.subject, fmt.Appendf(nil, "%s %d", m.word, n[m.word])); err != nil {
				f.t.Error(err)
				return n
			}
			n[m.word]++
		}
	}
}
