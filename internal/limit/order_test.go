package limit

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// queue is a member with things that need a place in one bucket. It starts one when it may, and asks again when the bucket is offered.
type queue struct {
	name    string
	member  *Member
	places  *Places
	waiting int
	running int
	left    bool
}

func newQueue(book *Book, name string, started func(name string), need Need) *queue {
	q := &queue{name: name}
	q.member = &Member{Name: name}
	q.member.Offer = func(*Bucket) bool {
		if q.waiting > 0 {
			q.try(started)
		}
		return q.waiting > 0
	}
	q.member.Waiting = func(_ *Bucket, most int) int { return min(most, q.waiting) }
	q.places = book.Places(q.member, need)
	return q
}

// try starts one of those that wait, which is counted as waiting already.
func (q *queue) try(started func(name string)) (pass []*Bucket) {
	full, pass := q.places.Take(time.Now())
	if full == nil {
		q.waiting--
		q.running++
		started(q.name)
	}
	return pass
}

// line is the promise of the package, in one bucket of places only: who waits stands in the line once, the first is offered what there is,
// and goes to its end if it wants more.
type line struct {
	places  int // 0: no bound
	closed  bool
	running map[string]int
	waiting map[string]int
	order   []string
	starts  []string // that are due, in order
}

func (l *line) used() (n int) {
	for _, k := range l.running {
		n += k
	}
	return n
}

func (l *line) room() bool { return !l.closed && (l.places == 0 || l.used() < l.places) }

// serve starts what there is room for.
func (l *line) serve() {
	for len(l.order) > 0 && l.room() {
		name := l.order[0]
		l.order = l.order[1:]
		l.waiting[name]--
		l.running[name]++
		l.starts = append(l.starts, name)
		if l.waiting[name] > 0 {
			l.order = append(l.order, name)
		}
	}
}

func (l *line) send(name string) {
	l.waiting[name]++ // also when there is room: those who stand in the line are before it
	if !slices.Contains(l.order, name) {
		l.order = append(l.order, name)
	}
	l.serve()
}

// turn is one thing that is done to the bucket or its members.
type turn struct {
	what   string
	member int
	places int
}

// Whatever is sent, given back, bounded, closed or left: what starts is what the line says, in its order. So never more has a place than
// there are, nobody waits while there is room, and no member starts twice while another one waits.
func TestLimit_startsInTheOrderOfTheLine(t *testing.T) {
	anyTurn := rapid.Custom(func(rt *rapid.T) turn {
		return turn{
			what:   rapid.SampledFrom([]string{"send", "send", "send", "free", "free", "overtake", "bound", "close", "open", "leave"}).Draw(rt, "what"),
			member: rapid.IntRange(0, 3).Draw(rt, "member"), places: rapid.IntRange(0, 4).Draw(rt, "places"),
		}
	})
	for range 20 { // few cases are long
		rapid.Check(t, func(rt *rapid.T) {
			places := rapid.IntRange(0, 4).Draw(rt, "places")
			turns := rapid.SliceOfN(anyTurn, 1, 80).Draw(rt, "turns")
			fault := ""
			synctest.Test(t, func(*testing.T) { fault = runOrder(places, turns) })
			if fault != "" {
				rt.Fatal(fault)
			}
		})
	}
}

func runOrder(places int, turns []turn) (fault string) {
	book := NewBook()
	want := &line{places: places, running: map[string]int{}, waiting: map[string]int{}}
	l := book.Set("a", Bounds{Places: places})
	var got []string
	started := func(name string) { got = append(got, name) }
	var all []*queue
	for i := range 4 {
		all = append(all, newQueue(book, fmt.Sprint(i), started, Need{Limit: l}))
	}
	for i, step := range turns {
		q := all[step.member]
		switch step.what {
		case "send":
			if q.left {
				continue
			}
			q.waiting++
			passAll(q.try(started))
			want.send(q.name)
		case "free":
			if q.running == 0 {
				continue
			}
			q.running--
			want.running[q.name]--
			passAll(q.places.Free(nil))
			want.serve()
		case "overtake": // one asks before the others are offered what was given back
			other := all[(step.member+1)%len(all)]
			if q.running == 0 || other.left {
				continue
			}
			q.running--
			pass := q.places.Free(nil)
			other.waiting++
			passAll(append(other.try(started), pass...))
			want.running[q.name]--
			want.send(other.name)
		case "bound":
			want.places = step.places
			l.Bound(Bounds{Places: want.places})
			want.serve()
		case "close", "open":
			want.closed = step.what == "close"
			l.Close(map[bool]string{true: "for the test"}[want.closed])
			want.serve()
		case "leave":
			q.left, q.waiting = true, 0
			book.Leave(q.member)
			want.waiting[q.name] = 0
			want.order = slices.DeleteFunc(want.order, func(name string) bool { return name == q.name })
			want.serve()
		}
		after := fmt.Sprintf("after turn %d, %s of %s", i, step.what, q.name)
		if !slices.Equal(got, want.starts) {
			return fmt.Sprintf("%s: started %v, want %v", after, got, want.starts)
		}
		s, d := l.Status(), l.Demand(1000)
		var order []string
		if len(s.Waiting) > 0 {
			order = s.Waiting[0].Waiting
		}
		waiting := 0
		for _, n := range want.waiting {
			waiting += n
		}
		if !slices.Equal(order, want.order) || s.Used != want.used() || d.Used != want.used() || d.Waiting != waiting || d.Since.IsZero() != (waiting == 0) {
			return fmt.Sprintf("%s: %+v, %+v; the model: %+v", after, s, d, *want)
		}
		for _, q := range all {
			if n := s.Holders[q.name]; n != want.running[q.name] {
				return fmt.Sprintf("%s: %s holds %d, want %d", after, q.name, n, want.running[q.name])
			}
		}
	}
	return ""
}
