package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// However the partitions are divided, and whoever hands over first: soon each instance has its share, and nothing moves after that.
func TestDivision_isFair(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count, n := rapid.IntRange(1, 64).Draw(t, "partitions"), rapid.IntRange(1, 20).Draw(t, "instances")
		has := make(map[string]int)
		names := make([]string, n)
		for i := range n {
			names[i] = fmt.Sprintf("s%02d", i)
			has[names[i]] = 0
		}
		for range count {
			has[rapid.SampledFrom(names).Draw(t, "has")]++
		}
		least, most := Division{count: count, has: has}.Fair()
		moved := 0
		for round := range 100 {
			free, seen := 0, maps.Clone(has)
			for _, name := range names { // each looks at the same moment
				over := Division{count: count, own: name, has: seen}.Over()
				has[name] -= over
				free += over
			}
			moved += free
			if free == 0 {
				break
			}
			for ; free > 0; free-- { // those with the fewest take first
				slices.SortStableFunc(names, func(a, b string) int { return has[a] - has[b] })
				has[names[0]]++
			}
			if round == 99 {
				t.Fatalf("it never comes to rest: %v", has)
			}
		}
		for name, own := range has {
			if own < least || own > most {
				t.Fatalf("%d partitions, %s has %d: %v", count, name, own, has)
			}
		}
		if moved > count {
			t.Fatalf("%d moves of %d partitions: %v", moved, count, has)
		}
	})
}

// Who has its share leaves what is free to the others for a moment, and longer who could not take more without giving back.
func TestDivision_Reluctance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		own, count int
		want       time.Duration
	}{{0, 5, 0}, {1, 5, 0}, {2, 5, reluctance / 2}, {3, 5, reluctance}, {4, 5, reluctance}, {0, 1, 0}, {1, 1, reluctance}} {
		d := Division{count: c.count, own: "a", has: map[string]int{"a": c.own, "b": 0}}
		if got := d.Reluctance(); got != c.want {
			t.Errorf("with %d of %d among two: %v, want %v", c.own, c.count, got, c.want)
		}
	}
}

// What the instances of a fleet say is known to the others, until they end.
func TestPeers_ofAFleet(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	var running sync.WaitGroup
	defer running.Wait()
	join := func(name string, state State) (*fleet.Fleet, func()) {
		t.Helper()
		f, err := fleet.Join(t.Context(), js, fleet.Config{Service: "relay", Instance: name, Version: "v1", State: func() json.RawMessage {
			data, _ := json.Marshal(state)
			return data
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		running.Go(func() { f.Run(ctx) })
		return f, cancel
	}
	generation := partition.Generation{Layout: partition.Layout{Count: 3, Stream: "ORDERS"}, Service: "relay", Route: "split", Number: 4}
	first := generation.RouteOf(0)
	a, stopA := join("a", State{Routes: []string{"billing", first}, Durables: map[string]string{"billing": "billing-2"}})
	defer stopA()
	_, stopB := join("b", State{Draining: true, Routes: []string{"billing", first}, Generations: map[string]Generations{"split": {Oldest: 3, Newest: 4}}})
	eventually := func(what string, ok func() bool) {
		t.Helper()
		natstest.Eventually(t, what, ok)
	}
	here := func() (names []string) {
		for m := range Here(a) {
			names = append(names, m.Instance)
		}
		slices.Sort(names)
		return names
	}
	eventually("both are known", func() bool { return slices.Equal(here(), []string{"a", "b"}) })
	for what, c := range map[string]struct{ got, want bool }{
		"a reads the durable":              {StandsBy(a, "b", "billing", "billing-2"), true},
		"a reads another one":              {StandsBy(a, "b", "billing", "billing"), false},
		"b does not say with which":        {StandsBy(a, "a", "billing", "billing"), true},
		"nobody has that route":            {StandsBy(a, "a", "other", "other"), false},
		"b divides":                        {Divides(a, "split"), true},
		"nobody divides":                   {Divides(a, "billing"), false},
		"b works on generation 3":          {WorkBefore(a, "split", 4), true},
		"nobody works on generation 2":     {WorkBefore(a, "split", 3), false},
		"b knows no newer one than that":   {AreFurther(a, "split", Generations{3, 4}), false},
		"b knows a newer one than that":    {AreFurther(a, "split", Generations{3, 3}), true},
		"b is through with an older one":   {AreFurther(a, "split", Generations{2, 4}), true},
		"without a fleet nothing is sure":  {WorkBefore(nil, "split", 3), true},
		"without a fleet nobody stands by": {StandsBy(nil, "a", "billing", "billing") || Divides(nil, "split") || AreFurther(nil, "split", Generations{}) || Held(nil, "ORDERS", "billing"), false},
		"nobody has the durable":           {Held(a, "ORDERS", "billing"), false},
		"another one would take it":        {Uses(a, "b", "ORDERS", "billing", "billing-2"), true},
		"nobody has or would take it":      {Uses(a, "b", "ORDERS", "billing", "billing"), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", what, c.got)
		}
	}
	if d := Divide(a, generation); d.Instances() != 1 || d.Own() != 0 {
		t.Errorf("divided among %d, of which this one has %d: one that drains counts", d.Instances(), d.Own())
	}
	if d := Divide(nil, generation); d.Instances() != 0 {
		t.Errorf("divided among %d without a fleet", d.Instances())
	}
	if here, nobody := Holds(nil, generation); len(here) > 0 || len(nobody) != 3 {
		t.Errorf("without a fleet %v are here, and nobody has %v", here, nobody)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running.Go(func() {
		a.Hold(ctx, Resource(generation.Name(), generation.DurableOf(1)), func() time.Duration { return 0 }, func(ctx context.Context, _ fleet.Lease) { <-ctx.Done() })
	})
	eventually("a has a partition", func() bool {
		return Divide(a, generation).Own() == 1 && Held(a, generation.Name(), generation.DurableOf(1))
	})
	if here, nobody := Holds(a, generation); !slices.Equal(here, []int{1}) || !slices.Equal(nobody, []int{0, 2}) {
		t.Errorf("%v are here, and nobody has %v", here, nobody)
	}
	stopB()
	eventually("b is gone", func() bool {
		gone := Gone(a)
		return slices.Equal(here(), []string{"a"}) && len(gone) == 1 && gone[0].Instance == "b" && gone[0].Clean
	})
}

// The names of durables and streams may hold what a key of a bucket may not. Different ones have different resources.
func TestResource_isAKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.StringMatching(`[A-Za-z0-9_=é!-]{1,8}`)
		s1, s2 := names.Draw(t, "stream"), names.Draw(t, "other")
		r1, r2 := Resource(s1, "d"), Resource(s2, "d")
		if (s1 == s2) != (r1 == r2) {
			t.Fatalf("%q and %q are %q and %q", s1, s2, r1, r2)
		}
		for _, c := range r1 {
			if c > 127 || c == '!' || c == '*' || c == '>' || c == ' ' {
				t.Fatalf("%q is no key", r1)
			}
		}
	})
}
