package supervise

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A list does what a slice does, whatever is put in, moved to another list, and taken out while it is walked.
func TestList_isASlice(t *testing.T) {
	type thing struct {
		n     int
		place node[thing]
	}
	rapid.Check(t, func(t *rapid.T) {
		var lists [2]list[thing]
		var want [2][]*thing
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			on := rapid.IntRange(0, 1).Draw(t, "list")
			l, w := &lists[on], want[on]
			switch rapid.SampledFrom([]string{"push", "sorted", "take", "walk"}).Draw(t, "step") {
			case "push":
				x := &thing{n: i}
				l.push(&x.place, x)
				w = append(w, x)
			case "sorted":
				x := &thing{n: rapid.IntRange(0, 40).Draw(t, "n")}
				l.pushBehind(&x.place, x, func(other *thing) bool { return other.n > x.n })
				at := len(w)
				for at > 0 && w[at-1].n > x.n {
					at--
				}
				w = slices.Insert(w, at, x)
			case "take":
				if len(w) == 0 {
					continue
				}
				at := rapid.IntRange(0, len(w)-1).Draw(t, "at")
				l.remove(&w[at].place)
				l.remove(&w[at].place) // does nothing
				w = slices.Delete(w, at, at+1)
			case "walk": // to the other list
				for x := range l.all() {
					l.remove(&x.place)
					lists[1-on].push(&x.place, x)
				}
				want[1-on] = append(want[1-on], w...)
				w = nil
			}
			want[on] = w
			for i := range lists {
				l, w := &lists[i], want[i]
				if got := slices.Collect(l.all()); !slices.Equal(got, w) || l.n != len(w) {
					t.Fatalf("list %d has %d things %v, want %v", i, l.n, got, w)
				}
				if len(w) > 0 && (l.first() != w[0] || l.last() != w[len(w)-1]) || len(w) == 0 && (l.first() != nil || l.last() != nil) {
					t.Fatalf("list %d begins with %v and ends with %v, want %v", i, l.first(), l.last(), w)
				}
				for _, x := range w {
					if !l.has(&x.place) || lists[1-i].has(&x.place) {
						t.Fatalf("%v is in the wrong list", x)
					}
				}
			}
		}
	})
}

func TestQueue_hasEachKeyOnceAndInTurn(t *testing.T) {
	q, other := queue{mark: markFresh}, queue{mark: markAlone}
	keys := make([]*key, 5000)
	for i := range keys {
		keys[i] = new(key)
		q.push(keys[i])
		q.push(keys[i])
		other.push(keys[i])
	}
	for i, k := range keys {
		if got := q.pop(); got != k || got.marks != markAlone {
			t.Fatalf("the key in place %d is another one, or its marks are %b", i, got.marks)
		}
		if i == 3000 {
			q.push(keys[0])
		}
	}
	if q.len() != 1 || q.pop() != keys[0] || len(q.waiting()) != 0 || other.len() != len(keys) {
		t.Errorf("%d keys are left, and %d in the other queue", q.len(), other.len())
	}
}
