package catchup

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever becomes of a durable's subjects, each message that a route wants is the durable's or is handed over, not both, and what the durable had
// before is its own.
func TestRecord_eachMessageHasOnePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(1_700_000_000, 0)
		at := func(seq uint64) time.Time { return begin.Add(time.Duration(seq) * time.Second) }
		last := uint64(rapid.IntRange(0, 30).Draw(t, "last"))
		had := uint64(rapid.IntRange(0, int(last)).Draw(t, "had"))
		g := Range{Pattern: "b.>", Except: []string{"b.old"}, Had: had}
		wanted := func(seq uint64) bool { return true }
		switch rapid.IntRange(0, 3).Draw(t, "start") {
		case 1:
			g.From, g.Until = last+1, last
			wanted = func(seq uint64) bool { return seq > last }
		case 2:
			g.From, g.Until = uint64(rapid.IntRange(1, 35).Draw(t, "from")), last
			wanted = func(seq uint64) bool { return seq >= g.From }
		case 3:
			g.Since, g.Until = at(uint64(rapid.IntRange(0, 35).Draw(t, "since"))), last
			wanted = func(seq uint64) bool { return !at(seq).Before(g.Since) }
		}
		r := new(Record)
		r.Begin(g)
		to := last + uint64(rapid.IntRange(0, 5).Draw(t, "more"))
		if rapid.Bool().Draw(t, "behind") {
			to = uint64(rapid.IntRange(min(1, int(to)), int(to)).Draw(t, "to")) // the durable goes on there
		}
		if len(r.Open()) != 1 {
			t.Fatalf("%d ranges are open", len(r.Open()))
		}
		r.Bound([]string{"a"}, to)
		if len(r.Open()) != 1 {
			t.Fatal("bounded by a durable that is not for it")
		}
		r.Bound([]string{"a", "b.>"}, to)
		handed := map[uint64]int{}
		walk := func() {
			for i := range r.Ranges {
				g := &r.Ranges[i]
				for n := 0; n < rapid.IntRange(0, 20).Draw(t, "batch") && !g.IsDone(); n++ {
					seq := g.Next()
					if !at(seq).Before(g.Since) {
						handed[seq]++
					}
					r.Progress(g.Pattern, seq, 1)
				}
			}
		}
		walk()
		if rapid.Bool().Draw(t, "away and back") { // all that was delivered meanwhile is up to to
			was := slices.Clone(r.Ranges)
			r.Leave("b.>", max(had, to))
			if len(was) > 0 && !was[0].IsDone() && r.Place(to, at(to), "b.x") != Outside {
				t.Fatal("what is left has a place")
			}
			again := g
			again.Had = 0
			r.Begin(again)
			r.Bound([]string{"a", "b.>"}, max(had, to))
		}
		for len(r.Ranges) > 0 && !r.IsDone() {
			walk()
		}
		for seq := uint64(1); seq <= to; seq++ {
			want := 1
			if seq <= had || !wanted(seq) {
				want = 0
			}
			if handed[seq] != want {
				t.Fatalf("%d was handed over %d times, want %d; %+v, up to %d", seq, handed[seq], want, r, to)
			}
			switch place := r.Place(seq, at(seq), "b.x"); {
			case len(r.Ranges) == 0:
			case seq <= had && place != Outside, seq > had && seq <= to && place == Waits:
				t.Fatalf("%d is in place %d; %+v", seq, place, r)
			}
		}
		if r.Place(had+1, at(had+1), "b.old") != Outside || r.Place(had+1, at(had+1), "a") != Outside {
			t.Fatal("what the durable is for has a place")
		}
		for seq := to + 1; seq < 40; seq++ {
			if place := r.Place(seq, at(seq), "b.x"); len(r.Ranges) > 0 && (place == Waits || place == Outside != (wanted(seq) || seq <= had)) {
				t.Fatalf("%d after the bound %d is in place %d; %+v", seq, to, place, r)
			}
		}
		if behind := (Record{Ranges: slices.Clone(r.Ranges)}); to > 0 && behind.Over(to-1) != nil && behind.MayHavePassed() > max(had, to) {
			t.Fatalf("it may have passed up to %d, of %d", behind.MayHavePassed(), max(had, to))
		}
		if r.Over(to+40) != nil {
			t.Fatalf("it is not over: %+v", r)
		}
	})
}

func TestGap(t *testing.T) {
	for name, c := range map[string]struct {
		filters, known, wanted, missing []string
	}{
		"no filter":          {wanted: []string{"a"}},
		"more":               {filters: []string{"a"}, wanted: []string{"a", "b", "b"}, missing: []string{"b"}},
		"wider":              {filters: []string{"a.b"}, wanted: []string{"a.*"}, missing: []string{"a.*"}},
		"narrower":           {filters: []string{"a.>"}, wanted: []string{"a.b"}},
		"known to be for it": {filters: []string{"a"}, known: []string{"b"}, wanted: []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Gap(c.filters, c.known, c.wanted); !slices.Equal(got, c.missing) {
				t.Errorf("%q, want %q", got, c.missing)
			}
		})
	}
	if got := Except([]string{"a", "b.c", "b.c"}, "b.*"); !slices.Equal(got, []string{"b.c"}) {
		t.Errorf("except %q", got)
	}
}
