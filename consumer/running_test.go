package consumer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// A unit takes over the sources that were opened for it, and its sources go with it.
func TestRunning_unitsAndSources(t *testing.T) {
	t.Parallel()
	r := newRunning()
	a, b := new(unit), new(unit)
	early, late, next, other := &source{unit: a}, &source{unit: a}, &source{unit: a}, &source{unit: b}
	if !r.include(early) || r.has(a) {
		t.Fatal("the unit runs before it was added")
	}
	a.running.Store(nil)
	started := 0
	if !r.add(a, func() { started++ }) || !r.add(b, func() { started++ }) || started != 2 || !slices.Equal(r.all(), []*unit{a, b}) {
		t.Fatalf("%d were started", started)
	}
	if !slices.Equal(a.open(), []*source{early}) || len(b.open()) > 0 {
		t.Errorf("%d and %d sources are open", len(a.open()), len(b.open()))
	}
	r.include(other)
	r.include(late)
	before := r.sources()
	if !r.replace(early, next) || !slices.Equal(r.sources(), []*source{next, other, late}) || !slices.Equal(a.open(), []*source{next, late}) {
		t.Error("the source is not in the place of the former one")
	}
	if before[0] != early {
		t.Error("a list that somebody reads has changed")
	}
	r.remove(a)
	if !slices.Equal(r.sources(), []*source{other}) || len(a.open()) > 0 || r.has(a) || !r.has(b) {
		t.Error("something of it is left")
	}
}

// Units that end by a change are not those that a drain ends, and nothing begins in either.
func TestRunning_nothingBeginsInWhatEnds(t *testing.T) {
	t.Parallel()
	r := newRunning()
	a, b := new(unit), new(unit)
	old := &source{unit: a}
	for _, u := range []*unit{a, b} {
		r.add(u, func() {})
	}
	r.include(old)
	made := 0
	if !r.commit([]*unit{a}, func() { made++ }) || made != 1 || r.has(a) {
		t.Fatal("the change is not made")
	}
	r.change(a, func() { t.Error("a change of a unit that ends") })
	if r.include(&source{unit: a}) || r.replace(old, &source{unit: a}) {
		t.Error("a source of a unit that ends was opened")
	}
	if r.isDraining() || !slices.Equal(r.drain(), []*unit{b}) || !r.isDraining() {
		t.Error("the drain ends others than those that run")
	}
	r.change(b, func() { t.Error("a change in the drain") })
	fail := func() { t.Error("called in the drain") }
	if r.include(new(source)) || r.add(new(unit), fail) || r.commit(nil, fail) {
		t.Error("something began in the drain")
	}
	if _, err := r.enter(t.Context(), t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	r.changes.Wait()
}

// One change is made after the other. A drain waits for those that began.
func TestRunning_enter(t *testing.T) {
	t.Parallel()
	r := newRunning()
	leave, err := r.enter(t.Context(), t.Context())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.enter(short, t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := r.enter(t.Context(), short); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	entered := make(chan func())
	go func() {
		leave, err := r.enter(t.Context(), t.Context())
		if err != nil {
			t.Error(err)
		}
		entered <- leave
	}()
	leave()
	(<-entered)()
	r.changes.Wait()
}
