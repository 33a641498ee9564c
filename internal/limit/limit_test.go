package limit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// route is a member as a group of the supervisor is one: what finds no room waits at the bucket that has none, and is tried again when
// the bucket is offered.
type route struct {
	name    string
	book    *Book
	member  *Member
	takes   time.Duration // one run
	slots   int
	places  []*Places // of the kinds of things that it has
	mu      sync.Mutex
	waiting map[*Bucket][]thing // in the order of their turns
	ready   []thing
	turns   int
	running int
	ofKind  map[int]int // how many have started
	times   map[int][]time.Time
	hogging bool               // there is always more
	watch   func(kind, by int) // told of each start and end; nil: nobody
}

type thing struct {
	kind int
	turn int // when it first found no room; 0: it did not
}

func newTestRoute(book *Book, name string, slots int, takes time.Duration, kinds ...[]Need) *route {
	r := &route{name: name, book: book, slots: slots, takes: takes, waiting: make(map[*Bucket][]thing), ofKind: make(map[int]int), times: make(map[int][]time.Time)}
	r.member = &Member{Name: name, Offer: r.offer}
	for _, needs := range kinds {
		r.places = append(r.places, book.Places(r.member, needs...))
	}
	return r
}

// send adds things of a kind.
func (r *route) send(kind, n int) {
	r.mu.Lock()
	for range n {
		r.ready = append(r.ready, thing{kind: kind})
	}
	pass := r.start()
	r.mu.Unlock()
	passAll(pass)
}

// start starts what it can. The lock is held.
func (r *route) start() (pass []*Bucket) {
	for len(r.ready) > 0 && r.running < r.slots {
		it := r.ready[0]
		r.ready = r.ready[1:]
		list, _ := r.try(it)
		pass = append(pass, list...)
	}
	return pass
}

// try starts one, or has it wait for room.
func (r *route) try(it thing) (pass []*Bucket, ok bool) {
	kind := it.kind
	var full *Bucket
	for b := range r.places[kind].Buckets() {
		if w := r.waiting[b]; len(w) > 0 && (it.turn == 0 || w[0].turn < it.turn) {
			full = b
			break
		}
	}
	if full == nil {
		full, pass = r.places[kind].Take(time.Now())
	}
	if full != nil {
		if it.turn == 0 {
			r.turns++
			it.turn = r.turns
		}
		i, _ := slices.BinarySearchFunc(r.waiting[full], it, func(x, y thing) int { return cmp.Compare(x.turn, y.turn) })
		r.waiting[full] = slices.Insert(r.waiting[full], i, it)
		return pass, false
	}
	r.running++
	if r.watch != nil {
		r.watch(kind, 1)
	}
	r.ofKind[kind]++
	r.times[kind] = append(r.times[kind], time.Now())
	if r.hogging {
		r.ready = append(r.ready, thing{kind: kind})
	}
	go func() {
		time.Sleep(r.takes)
		r.mu.Lock()
		r.running--
		if r.watch != nil {
			r.watch(kind, -1)
		}
		pass := r.places[kind].Free(nil)
		pass = append(pass, r.start()...)
		r.mu.Unlock()
		passAll(pass)
	}()
	return pass, true
}

func (r *route) offer(b *Bucket) (more bool) {
	r.mu.Lock()
	var pass []*Bucket
	for n := len(r.waiting[b]); n > 0 && len(r.waiting[b]) > 0; n-- {
		it := r.waiting[b][0]
		r.waiting[b] = r.waiting[b][1:]
		if r.running >= r.slots {
			r.ready = append(r.ready, it)
			continue
		}
		list, ok := r.try(it)
		if pass = append(pass, list...); ok {
			break
		}
	}
	pass = append(pass, r.start()...)
	more = len(r.waiting[b]) > 0
	r.mu.Unlock()
	passAll(pass)
	return more
}

func (r *route) started() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, k := range r.ofKind {
		n += k
	}
	return n
}

// left is how many things have not started.
func (r *route) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.ready)
	for _, list := range r.waiting {
		n += len(list)
	}
	return n
}

func (r *route) stopHogging() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hogging = false
}

// A route that needs two limits, each of which another one can use up alone, started 1 of 20 in a minute, or none.
func TestPlaces_regressionARouteOfTwoLimitsDoesNotStarve(t *testing.T) {
	for name, bounds := range map[string]Bounds{
		"1 place": {Places: 1}, "2 places": {Places: 2}, "20 places": {Places: 20}, "10 a second": {Rate: 10, Burst: 1}, "100 a second in tens": {Rate: 100, Burst: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				book := NewBook()
				gpu, bank := Need{Limit: book.Set("gpu", bounds)}, Need{Limit: book.Set("bank", bounds)}
				x := newTestRoute(book, "x", 64, 10*time.Millisecond, []Need{gpu})
				y := newTestRoute(book, "y", 64, 10*time.Millisecond, []Need{bank})
				z := newTestRoute(book, "z", 64, 10*time.Millisecond, []Need{gpu, bank})
				for _, r := range []*route{x, y, z} {
					r.hogging = true
					r.send(0, 100)
				}
				time.Sleep(20 * time.Second)
				n, others := z.started(), x.started()+y.started()
				t.Logf("z %d, x %d, y %d", n, x.started(), y.started())
				if n*10 < others/2 {
					t.Errorf("z started %d, the others %d", n, others)
				}
				for _, r := range []*route{x, y, z} {
					r.stopHogging()
				}
				time.Sleep(time.Minute)
				for _, r := range []*route{x, y, z} {
					if r.left() > 0 || r.running > 0 {
						t.Errorf("%s: %d have not started, %d run", r.name, r.left(), r.running)
					}
				}
			})
		})
	}
}

// Of what waits for a value, nothing keeps places that others could use.
func TestPlaces_whatWaitsForAValueKeepsNoSharedPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := NewBook()
		gpu, tenant := book.Set("gpu", Bounds{Places: 4}), book.Set("a tenant", Bounds{Places: 1, Rate: 1, Burst: 1})
		var kinds [][]Need
		for i := range 50 {
			kinds = append(kinds, []Need{{Limit: gpu}, {Limit: tenant, Value: fmt.Sprint(i)}})
		}
		z := newTestRoute(book, "z", 64, 10*time.Millisecond, kinds...)
		x := newTestRoute(book, "x", 64, 10*time.Millisecond, []Need{{Limit: gpu}})
		for i := range 50 {
			z.send(i, 100)
		}
		time.Sleep(3 * time.Second)
		began := x.started()
		x.hogging = true
		x.send(0, 100)
		time.Sleep(10 * time.Second)
		// 4 places are 400 a second, of which the tenants take 50.
		if n := x.started() - began; n < 3300 {
			t.Errorf("x started %d, want nearly 3500", n)
		}
		if n := z.started(); n < 600 {
			t.Errorf("z started %d in 13 s, want nearly 650", n)
		}
		x.stopHogging()
		time.Sleep(3 * time.Minute)
		if z.left() > 0 || x.left() > 0 {
			t.Errorf("%d and %d have not started", z.left(), x.left())
		}
	})
}

// Whoever holds a limit may hang. What waits for that keeps the others' places for a while only.
func TestPlaces_aLimitThatHangsHoldsUpTheOtherForAWhileOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := NewBook()
		gpu, bank := Need{Limit: book.Set("gpu", Bounds{Places: 1})}, Need{Limit: book.Set("bank", Bounds{Places: 1})}
		hangs := newTestRoute(book, "hangs", 1, 10*time.Minute, []Need{gpu})
		hangs.send(0, 1)
		y := newTestRoute(book, "y", 64, 10*time.Millisecond, []Need{bank})
		z := newTestRoute(book, "z", 64, 10*time.Millisecond, []Need{gpu, bank})
		z.send(0, 10)
		y.send(0, 1)
		time.Sleep(1500 * time.Millisecond)
		if y.started() != 1 {
			t.Errorf("y has not started")
		}
		time.Sleep(10 * time.Minute)
		if z.started() != 10 {
			t.Errorf("z started %d of 10", z.started())
		}
	})
}

// Closing a limit gives back at once what is kept for those that wait for it.
func TestPlaces_aClosedLimitKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := NewBook()
		gpu, bank := Need{Limit: book.Set("gpu", Bounds{Places: 1})}, Need{Limit: book.Set("bank", Bounds{Places: 1})}
		x := newTestRoute(book, "x", 1, 100*time.Millisecond, []Need{gpu})
		y := newTestRoute(book, "y", 64, 10*time.Millisecond, []Need{bank})
		z := newTestRoute(book, "z", 64, 10*time.Millisecond, []Need{gpu, bank})
		x.send(0, 1)
		z.send(0, 2)
		y.send(0, 5)
		synctest.Wait()
		gpu.Limit.Close("the other instances are not known")
		time.Sleep(100 * time.Millisecond)
		if y.started() != 5 {
			t.Errorf("y started %d of 5", y.started())
		}
		gpu.Limit.Close("")
		time.Sleep(100 * time.Millisecond)
		if z.started() != 2 || z.left() > 0 {
			t.Errorf("z started %d of 2", z.started())
		}
	})
}

// Random routes at random limits that change: what runs is never above a limit, everybody has a part of it, and when nothing more comes
// all that waits is started.
func TestModel_limits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fault := ""
		synctest.Test(t, func(*testing.T) { fault = modelOfLimits(rt) })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

func modelOfLimits(rt *rapid.T) (fault string) {
	pick := func(name string, list ...int) int { return rapid.SampledFrom(list).Draw(rt, name) }
	book := NewBook()
	var limits []*Limit
	bounds := map[string]Bounds{}
	changed := map[string]bool{}
	draw := func() (b Bounds) {
		if b.Places = pick("places", 0, 1, 1, 2, 3, 6); b.Places == 0 || pick("rated", 0, 0, 1) == 1 {
			b.Rate, b.Burst = float64(pick("rate", 5, 20, 100)), pick("burst", 1, 1, 2, 10)
		}
		return b
	}
	for i := range pick("limits", 1, 2, 2, 3, 4) {
		name := string(rune('a' + i))
		b := draw()
		bounds[name] = b
		limits = append(limits, book.Set(name, b))
	}
	var routes []*route
	var needs [][][]Need // by route and kind
	for i := range pick("routes", 1, 2, 3, 4) {
		var kinds [][]Need
		var mine []*Limit
		for _, l := range limits {
			if pick("uses "+l.name, 0, 1, 1) == 1 {
				mine = append(mine, l)
			}
		}
		if len(mine) == 0 {
			mine = limits[:1]
		}
		valued := map[*Limit]bool{}
		for _, l := range mine {
			valued[l] = l.name == "c" || l.name == "d" // a limit is of a value for all, or for none
		}
		for range pick("kinds", 1, 1, 2, 5) {
			var list []Need
			for _, l := range mine {
				n := Need{Limit: l}
				if valued[l] {
					n.Value = fmt.Sprint(pick("value", 1, 2, 3))
				}
				list = append(list, n)
			}
			kinds = append(kinds, list)
		}
		r := newTestRoute(book, fmt.Sprint("route ", i), pick("slots", 1, 4, 64), time.Duration(pick("takes", 10, 10, 50))*time.Millisecond, kinds...)
		routes, needs = append(routes, r), append(needs, kinds)
	}
	above := func() string {
		book.mu.Lock()
		defer book.mu.Unlock()
		for _, l := range book.limits {
			for _, b := range l.buckets {
				n := 0
				for _, s := range b.seats {
					n += s.used
				}
				if n != b.used || b.promised < 0 || b.promised > b.used || b.used < 0 {
					return fmt.Sprintf("%s: %d used, of seats %d, reserved %d", b.Name(), b.used, n, b.promised)
				}
				if most := bounds[l.name].Places; most > 0 && b.used > most {
					return fmt.Sprintf("%s: %d of %d", b.Name(), b.used, most)
				}
			}
		}
		return ""
	}
	for _, r := range routes {
		r.hogging = true
		for kind := range r.places {
			n := pick("things", 1, 2, 5)
			if len(r.places) == 1 {
				n = pick("things", 1, 5, 70)
			}
			r.send(kind, n)
		}
	}
	for range pick("steps", 0, 0, 2, 5) {
		time.Sleep(time.Duration(pick("ms", 3, 50, 700, 2500)) * time.Millisecond)
		if what := above(); what != "" {
			fault = cmp.Or(fault, what)
		}
		l := rapid.SampledFrom(limits).Draw(rt, "limit")
		switch pick("what", 0, 1, 2, 3) {
		case 0:
			if b := draw(); b.Places >= bounds[l.name].Places && bounds[l.name].Places > 0 || b.Places == 0 { // a smaller one holds when runs have ended
				bounds[l.name], changed[l.name] = b, true
				l.Bound(b)
			}
		case 1:
			l.Close("for the test")
			time.Sleep(time.Duration(pick("closed ms", 1, 100, 3000)) * time.Millisecond)
			l.Close("")
		case 2:
			l.Slow(pick("slow", 0, 1, 5), time.Now().Add(time.Duration(pick("slow ms", 1, 100, 3000))*time.Millisecond), "test")
		case 3:
			l.EndSlow()
		}
	}
	for _, l := range limits {
		l.Close("")
		l.EndSlow()
	}
	before := make([]map[int]int, len(routes))
	for i, r := range routes {
		r.mu.Lock()
		before[i] = maps.Clone(r.ofKind)
		r.mu.Unlock()
	}
	for range 40 {
		time.Sleep(time.Second)
		if what := above(); what != "" {
			fault = cmp.Or(fault, what)
		}
	}
	// Each kind has its part. A bucket is for a hundred things at most, and they have 200 starts.
	for i, r := range routes {
		r.mu.Lock()
		for kind, list := range needs[i] {
			if n := r.ofKind[kind] - before[i][kind]; n < 1 && r.slots == 64 { // a slot is offered to nobody, so that few of them are like one limit more
				fault = cmp.Or(fault, fmt.Sprintf("%s started %d of kind %v in 40 s, %v; it has %d slots\n%s", r.name, n, list, bounds, r.slots, dump(book, routes)))
			}
		}
		r.mu.Unlock()
	}
	for _, r := range routes {
		r.stopHogging()
	}
	time.Sleep(10 * time.Minute)
	for _, r := range routes {
		if r.left() > 0 || r.running > 0 {
			fault = cmp.Or(fault, fmt.Sprintf("%s: %d have not started, %d run\n%s", r.name, r.left(), r.running, dump(book, routes)))
		}
	}
	// What a rate lets start is never above.
	starts := map[*Bucket][]time.Time{}
	for _, r := range routes {
		for kind, times := range r.times {
			for b := range r.places[kind].Buckets() {
				if b.limit.bounds.Rate > 0 && !changed[b.limit.name] {
					starts[b] = append(starts[b], times...)
				}
			}
		}
	}
	for b, times := range starts {
		slices.SortFunc(times, time.Time.Compare)
		burst := float64(b.limit.bounds.Burst)
		tokens, last := burst, times[0]
		for i, at := range times {
			tokens = min(burst, tokens+at.Sub(last).Seconds()*b.limit.bounds.Rate) - 1
			if last = at; tokens < -1e-3 {
				fault = cmp.Or(fault, fmt.Sprintf("%s: start %d is above %v", b.Name(), i, b.limit.bounds))
			}
		}
	}
	book.mu.Lock()
	defer book.mu.Unlock()
	for _, l := range book.limits {
		for _, b := range l.buckets {
			if b.used != 0 || b.promised != 0 {
				fault = cmp.Or(fault, fmt.Sprintf("%s: %d used, %d reserved at the end", b.Name(), b.used, b.promised))
			}
		}
	}
	return fault
}

func dump(book *Book, routes []*route) string {
	var list []string
	for _, r := range routes {
		line := fmt.Sprintf("%s: %d slots, %d run, %d ready", r.name, r.slots, r.running, len(r.ready))
		for b, w := range r.waiting {
			line += fmt.Sprintf(", %d at %s", len(w), b.Name())
		}
		list = append(list, line)
	}
	book.mu.Lock()
	for _, l := range book.limits {
		for _, b := range l.buckets {
			for _, s := range b.seats {
				if s.reserve != nil {
					list = append(list, fmt.Sprintf("reserved for %s at %s: %d", s.member.Name, b.Name(), len(s.reserve.seats)))
				}
			}
			list = append(list, fmt.Sprintf("%s: room ", b.Name())+fmt.Sprint(b.room(time.Now())))
		}
	}
	book.mu.Unlock()
	for _, s := range book.Status() {
		list = append(list, fmt.Sprintf("%+v", s))
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}
