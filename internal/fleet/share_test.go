package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

// Shares are fair to within one, leave nothing that somebody wants, and give nobody more than it wants.
func TestFairShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(0, 50).Draw(t, "total")
		wants := rapid.MapOf(rapid.StringMatching("[a-h]"), rapid.IntRange(0, 60)).Draw(t, "wants")
		line := rapid.Permutation(slices.Sorted(maps.Keys(wants))).Draw(t, "line")
		shares := fairShares(total, wants, line)
		sum, wanted, least, most := 0, 0, 1<<30, 0
		for id, want := range wants {
			n := shares[id]
			sum, wanted = sum+n, wanted+want
			if n > want || n < 0 {
				t.Fatalf("%s gets %d and wants %d", id, n, want)
			}
			if most = max(most, n); n < want {
				least = min(least, n)
			}
		}
		if sum != min(total, wanted) {
			t.Fatalf("%d of %d given, %d wanted: %v", sum, total, wanted, shares)
		}
		if least < most-1 {
			t.Fatalf("not fair: %v of %v", shares, wants)
		}
		for i, id := range line {
			for _, later := range line[i+1:] {
				if shares[id] < wants[id] && shares[id] < shares[later] {
					t.Fatalf("%s comes before %s, and has less: %v of %v", id, later, shares, wants)
				}
			}
		}
	})
}

// Whatever order instances look, write, lose answers and die in, however old what they see is, and whatever the limit becomes meanwhile: those
// that live never use more than there is or was, nothing starts above a smaller limit once all have looked, and once all is calm every part is
// used.
func TestPortion_neverMoreThanThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 12).Draw(t, "total")
		most := total
		// The bucket: all documents that there were, the last one counts.
		docs := []map[string]int{{}}
		type instance struct {
			portion
			alive, hungry bool
			sees          int // index of the document
		}
		all := make([]*instance, rapid.IntRange(2, 5).Draw(t, "instances"))
		for i := range all {
			all[i] = &instance{portion: portion{id: fmt.Sprint(i)}, alive: true}
		}
		check := func() {
			sum := 0
			for _, in := range all {
				if in.alive {
					sum += max(in.used, in.bound)
				}
			}
			if sum > most {
				t.Fatalf("%d may be used, there are %d at most", sum, most)
			}
		}
		turn := func(in *instance, first int, lost bool) {
			in.total, in.have, in.revision = total, docs[in.sees], uint64(in.sees)
			in.wants, in.over = map[string]int{}, map[string]bool{}
			for _, o := range all {
				in.over[o.id] = !o.alive
				if o.alive {
					if in.wants[o.id] = o.used; o.hungry {
						in.wants[o.id] = total
					}
				}
			}
			in.line = slices.Sorted(maps.Keys(in.wants))
			for range first % len(in.line) {
				in.line = append(in.line[1:], in.line[0])
			}
			in.step()
			check()
			next := in.step()
			if next == nil {
				return
			}
			counts := in.sees == len(docs)-1
			if counts {
				docs = append(docs, next)
			}
			if counts && !lost {
				in.sees = len(docs) - 1
			} else {
				in.doubt(next[in.id])
			}
			check()
		}
		t.Repeat(map[string]func(*rapid.T){
			"look": func(t *rapid.T) {
				if in := rapid.SampledFrom(all).Draw(t, "who"); in.alive {
					turn(in, rapid.IntRange(0, 4).Draw(t, "first in line"), rapid.Bool().Draw(t, "lost"))
				}
			},
			"see": func(t *rapid.T) {
				in := rapid.SampledFrom(all).Draw(t, "who")
				in.sees = rapid.IntRange(in.sees, len(docs)-1).Draw(t, "document")
			},
			"use": func(t *rapid.T) {
				in := rapid.SampledFrom(all).Draw(t, "who")
				in.hungry = rapid.Bool().Draw(t, "hungry")
				if in.alive && in.used < in.bound {
					in.used++
				}
			},
			"end": func(t *rapid.T) {
				in := rapid.SampledFrom(all).Draw(t, "who")
				in.used = max(0, in.used-1)
			},
			"change": func(t *rapid.T) {
				total = rapid.IntRange(0, 12).Draw(t, "new total")
				most = max(most, total)
			},
			"die": func(t *rapid.T) {
				in := rapid.SampledFrom(all).Draw(t, "who")
				if in.id != "0" {
					in.alive, in.used, in.bound, in.hungry = false, 0, 0, false
				}
			},
			"": func(*rapid.T) { check() },
		})
		for _, in := range all {
			in.hungry = in.alive
			in.sees = len(docs) - 1
		}
		sum := 0
		for _, in := range all {
			if in.alive {
				turn(in, 0, false)
				in.sees = len(docs) - 1
			}
		}
		for _, in := range all {
			if in.alive {
				sum += in.bound
			}
		}
		if sum > total {
			t.Fatalf("all have looked: %d may be used, %d are allowed", sum, total)
		}
		for range 20 {
			for _, in := range all {
				in.used = 0
				if in.alive {
					in.sees = len(docs) - 1
					turn(in, 0, false)
				}
			}
		}
		sum = 0
		for _, in := range all {
			if in.alive {
				sum += in.bound
			}
		}
		if sum != total {
			t.Fatalf("calm, and all are hungry: %d of %d may be used (%v)", sum, total, docs[len(docs)-1])
		}
	})
}

// consumer of a limit in a fleet: as hungry as it is told to be, it uses all that it may.
type consumer struct {
	*instance
	hungry  atomic.Bool
	changed chan struct{}
	bound   atomic.Int64
}

func (i *instance) consume(t *testing.T, ctx context.Context, total int, told func(func())) *consumer {
	c := &consumer{instance: i, changed: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Share(ctx, Parts{
			Name: "gateway", Total: func() int { return total }, Changed: c.changed,
			Used: func() int { return 0 },
			Demand: func() Demand {
				if !c.hungry.Load() {
					return Demand{}
				}
				return Demand{Want: total, Since: time.Unix(1, 0)}
			},
			Allow: func(n int, _ map[string]int) {
				told(func() { c.bound.Store(int64(n)) })
			},
		})
	}()
	t.Cleanup(func() { <-done })
	return c
}

// may is what an instance may start now.
func (c *consumer) may() int {
	n := int(c.bound.Load())
	if !c.Valid() {
		return 0
	}
	return n
}

func (c *consumer) want(yes bool) {
	c.hungry.Store(yes)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Three instances share ten parts: whoever wants them has them soon, what dies is spread over the others after its lease, and never do
// those that live have more than ten together.
func TestShare_movesAndHeals(t *testing.T) {
	s := natstest.Start(t)
	var mu sync.Mutex
	var all []*consumer
	news := make(chan struct{}, 1)
	told := func(change func()) {
		defer func() {
			select {
			case news <- struct{}{}:
			default:
			}
		}()
		mu.Lock()
		defer mu.Unlock()
		change()
		sum := 0
		for _, c := range all {
			sum += c.may()
		}
		if sum > 10 {
			t.Errorf("%d may be used at once", sum)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, name := range []string{"a", "b", "c"} {
		c := join(t, s, name).consume(t, ctx, 10, told)
		mu.Lock()
		all = append(all, c)
		mu.Unlock()
	}
	t.Cleanup(cancel)
	until := func(what string, ok func(a, b, c int) bool) {
		t.Helper()
		over := time.After(30 * time.Second)
		for {
			x := []int{all[0].may(), all[1].may(), all[2].may()}
			if ok(x[0], x[1], x[2]) {
				return
			}
			select {
			case <-news:
			case <-time.After(50 * time.Millisecond):
			case <-over:
				t.Fatalf("%s: not in 30 s, they have %v", what, x)
			}
		}
	}
	all[0].want(true)
	until("one wants all", func(a, b, c int) bool { return a == 10 })
	all[1].want(true)
	until("two share", func(a, b, c int) bool { return a == 5 && b == 5 })
	all[2].want(true)
	until("three share", func(a, b, c int) bool { return a+b+c == 10 && min(a, b, c) == 3 })
	all[0].want(false)
	all[1].die()
	until("one is left that wants", func(a, b, c int) bool { return b == 0 && c == 10 })
	all[2].link.Stall()
	all[0].want(true)
	until("it is cut off, and another one has all", func(a, b, c int) bool { return a == 10 && c == 0 })
	all[2].link.Resume()
	until("it is back", func(a, b, c int) bool { return a == 5 && c == 5 })
}
