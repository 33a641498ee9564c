package limit

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A limit of the model: what it was told, and when.
type modelLimit struct {
	*Limit
	bounds Bounds
	before []pastPlaces
	shut   bool // closed, or not valid
	slow   time.Time
	lacks  time.Time // since when there is no part; zero: there is one
}

// pastPlaces is a number of places that was in force until then.
type pastPlaces struct {
	n     int
	until time.Time
}

func (m *modelLimit) set(b Bounds) {
	m.before = append(m.before, pastPlaces{m.bounds.Places, time.Now()})
	m.bounds = b
}

// kept is for how long a place that was reserved before a change may still be used.
const kept = patienceMax + time.Second

// places is how many may run once one has started now; 0: any number. What was reserved under an earlier bound is in use.
func (m *modelLimit) places() int {
	most := m.bounds.Places
	for _, p := range m.before {
		if time.Since(p.until) > kept || most == 0 {
			continue
		}
		if most = max(most, p.n); p.n == 0 {
			most = 0
		}
	}
	return most
}

// lets tells whether something may start.
func (m *modelLimit) lets() bool {
	return !m.shut && !time.Now().Before(m.slow) && (m.lacks.IsZero() || time.Since(m.lacks) < kept)
}

// change is one thing that is done to the limits or the routes.
type change struct {
	what   string
	limit  int
	route  int
	kind   int
	n      int
	bounds Bounds
	rest   time.Duration
}

var anyBounds = rapid.Custom(func(t *rapid.T) Bounds {
	b := Bounds{Places: rapid.IntRange(0, 5).Draw(t, "places")}
	if rapid.Bool().Draw(t, "has a rate") {
		b.Rate, b.Burst = float64(rapid.IntRange(1, 50).Draw(t, "rate")), rapid.IntRange(1, 5).Draw(t, "burst")
	}
	return b
})

var anyChange = rapid.Custom(func(t *rapid.T) change {
	return change{
		what:   rapid.SampledFrom([]string{"send", "send", "send", "send", "bound", "close", "open", "allot", "lack", "own", "slow", "quick", "fence", "drop"}).Draw(t, "what"),
		limit:  rapid.IntRange(0, 2).Draw(t, "limit"),
		route:  rapid.IntRange(0, 2).Draw(t, "route"),
		kind:   rapid.IntRange(0, 5).Draw(t, "kind"),
		n:      rapid.IntRange(1, 6).Draw(t, "n"),
		bounds: anyBounds.Draw(t, "bounds"),
		rest:   rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 30 * time.Millisecond, time.Second, 90 * time.Second}).Draw(t, "rest"),
	}
})

// Whatever is done to limits, in whatever order: nothing starts beyond a bound or where nothing may start, and once everything is in force
// again, everything has had its turn and nothing is taken, kept or waited for.
func TestBook_model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := [3]Bounds{anyBounds.Draw(rt, "a"), anyBounds.Draw(rt, "b"), anyBounds.Draw(rt, "v")}
		changes := rapid.SliceOfN(anyChange, 1, 40).Draw(rt, "changes")
		synctest.Test(t, func(*testing.T) { runModel(rt, first, changes) })
	})
}

func runModel(rt *rapid.T, first [3]Bounds, changes []change) {
	book := NewBook()
	var limits [3]*modelLimit
	for i, name := range []string{"a", "b", "v"} {
		limits[i] = &modelLimit{Limit: book.Set(name, first[i]), bounds: first[i]}
	}
	a, b, v := limits[0].Limit, limits[1].Limit, limits[2].Limit
	kinds := [][]Need{{{a, ""}}, {{b, ""}}, {{a, ""}, {b, ""}}, {{v, "x"}}, {{v, "y"}}, {{a, ""}, {v, "x"}}}
	var routes []*route
	for i := range 3 {
		r := newTestRoute(book, fmt.Sprint("route ", i), 4, 20*time.Millisecond, kinds...)
		r.member.Waiting = func(b *Bucket, most int) int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return min(most, len(r.waiting[b]))
		}
		routes = append(routes, r)
	}
	sent := 0
	running := map[string]int{} // by bucket
	var mu sync.Mutex
	starting := func(kind, by int) {
		mu.Lock()
		defer mu.Unlock()
		for _, need := range kinds[kind] {
			running[need.Limit.Name()+need.Value] += by
			if by < 0 {
				continue
			}
			for _, m := range limits {
				if m.Limit != need.Limit {
					continue
				}
				if n := running[need.Limit.Name()+need.Value]; m.places() > 0 && n > m.places() {
					rt.Errorf("%d run in %s%s, of %d", n, m.Name(), need.Value, m.places())
				}
				if !m.lets() {
					rt.Errorf("something starts in %s, which lets nothing start", m.Name())
				}
			}
		}
	}
	for _, r := range routes {
		r.watch = starting
	}
	// What the model knows of a limit is stricter no sooner than the limit, and laxer no later.
	know := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	for _, c := range changes {
		m, r := limits[c.limit], routes[c.route]
		switch c.what {
		case "send":
			r.send(c.kind, c.n)
			sent += c.n
		case "bound":
			know(func() { m.set(c.bounds) })
			m.Bound(c.bounds)
		case "close":
			m.Close("the bucket is away")
			know(func() { m.shut = true })
		case "open", "own":
			know(func() { m.shut, m.lacks = false, time.Time{}; m.set(c.bounds) })
			m.Close("")
			m.Fence(nil)
			m.Own(c.bounds)
		case "allot", "lack":
			know(func() { m.shut, m.lacks = false, time.Time{}; m.set(c.bounds) })
			m.Fence(nil)
			p := Part{Bounds: c.bounds, Note: "a part"}
			if c.what == "lack" {
				p.Lacks = "no part yet"
			}
			m.Allot(p)
			if c.what == "lack" {
				know(func() { m.lacks = time.Now() })
			}
		case "slow":
			until := time.Now().Add(time.Duration(c.n) * time.Second)
			m.Slow(0, until, "429")
			know(func() {
				if until.After(m.slow) {
					m.slow = until
				}
			})
		case "quick":
			know(func() { m.slow = time.Time{} })
			m.EndSlow()
		case "fence":
			m.Fence(func() bool { return false })
			know(func() { m.shut = true })
		case "drop": // of a kind of which nothing waits or runs
			r.mu.Lock()
			p := book.Places(r.member, kinds[c.kind]...)
			r.mu.Unlock()
			passAll(p.Drop())
		}
		time.Sleep(c.rest)
		for _, s := range book.Status() {
			used := 0
			for _, n := range s.Holders {
				used += n
			}
			if used != s.Used || used < 0 {
				rt.Errorf("%s: %d places are used, %d by its holders", s.Name, s.Used, used)
			}
		}
		synctest.Wait()
	}
	for i, m := range limits {
		know(func() { m.shut, m.slow, m.lacks = false, time.Time{}, time.Time{}; m.set(first[i]) })
		m.Fence(nil)
		m.Close("")
		m.EndSlow()
		m.Own(first[i])
	}
	time.Sleep(2 * time.Hour)
	synctest.Wait()
	started := 0
	for _, r := range routes {
		started += r.started()
	}
	if started != sent {
		rt.Errorf("%d of %d started; %+v", started, sent, book.Status())
	}
	for _, m := range limits {
		if s := m.Status(); s.Used != 0 || len(s.Waiting) > 0 || s.Closed != "" || m.Demand(10) != (Demand{}) {
			rt.Errorf("%s at the end: %+v, %+v", m.Name(), s, m.Demand(10))
		}
	}
	for _, r := range routes {
		book.Leave(r.member)
	}
	for _, m := range limits {
		if s := m.Status(); len(s.Holders) > 0 {
			rt.Errorf("%s when all members have left: %+v", m.Name(), s)
		}
		book.Remove(m.Name())
		if book.Get(m.Name()) != nil {
			rt.Errorf("%s is there still", m.Name())
		}
	}
}
