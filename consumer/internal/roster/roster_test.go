package roster

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unit and source are as small as they can be.
type unit struct{ Member[*source] }

type source struct{ unit *unit }

func newRoster() *Roster[*unit, *source] {
	return New(func(s *source) (*unit, bool) { return s.unit, s.unit != nil })
}

// model is what the roster has to say, in words as simple as possible.
type model struct {
	units, ending []*unit
	open          []*source
	of            map[*unit][]*source
	draining      bool
}

func (m *model) mayBegin(s *source) bool {
	return !m.draining && (s.unit == nil || !slices.Contains(m.ending, s.unit))
}

func (m *model) running() []*unit {
	return slices.DeleteFunc(slices.Clone(m.units), func(u *unit) bool { return slices.Contains(m.ending, u) })
}

// Whatever begins and ends, in any order: nothing begins in what ends or in a drain, a unit takes over what was opened for it, and its sources go with it.
func TestRoster_model(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, m := newRoster(), &model{of: map[*unit][]*source{}}
		units := []*unit{{}, {}, {}}
		pick := rapid.SampledFrom(units)
		t.Repeat(map[string]func(*rapid.T){
			"include": func(t *rapid.T) {
				s := &source{}
				if rapid.Bool().Draw(t, "of a unit") {
					s.unit = pick.Draw(t, "unit")
				}
				want := m.mayBegin(s)
				if r.Include(s) != want {
					t.Fatalf("include: want %v", want)
				}
				if want {
					m.open = append(m.open, s)
					if s.unit != nil {
						m.of[s.unit] = append(m.of[s.unit], s)
					}
				}
			},
			"replace": func(t *rapid.T) {
				list := slices.DeleteFunc(slices.Clone(m.open), func(s *source) bool { return s.unit == nil })
				if len(list) == 0 {
					t.Skip()
				}
				old := rapid.SampledFrom(list).Draw(t, "old")
				next := &source{old.unit}
				want, before := m.mayBegin(old), r.Sources()
				kept := slices.Clone(before)
				if r.Replace(old, next) != want {
					t.Fatalf("replace: want %v", want)
				}
				if want {
					m.open[slices.Index(m.open, old)] = next
					m.of[old.unit][slices.Index(m.of[old.unit], old)] = next
				}
				if !slices.Equal(before, kept) {
					t.Fatal("a list that somebody reads has changed")
				}
			},
			"add": func(t *rapid.T) {
				u := pick.Draw(t, "unit")
				if slices.Contains(m.units, u) || slices.Contains(m.ending, u) {
					t.Skip()
				}
				started := false
				if ok := r.Add(u, func() { started = true }); ok == m.draining || ok != started {
					t.Fatalf("add: %v, started %v", ok, started)
				}
				if !m.draining {
					m.units = append(m.units, u)
				}
			},
			"commit": func(t *rapid.T) {
				ends := slices.DeleteFunc(m.running(), func(*unit) bool { return rapid.Bool().Draw(t, "stays") })
				made := false
				if ok := r.Commit(ends, func() { made = true }); ok == m.draining || ok != made {
					t.Fatalf("commit: %v, made %v", ok, made)
				}
				if made {
					m.ending = append(m.ending, ends...)
				}
			},
			"change": func(t *rapid.T) {
				u := pick.Draw(t, "unit")
				ran := false
				r.Change(u, func() { ran = true })
				if r.Wait(); ran != (!m.draining && !slices.Contains(m.ending, u)) {
					t.Fatalf("change: %v", ran)
				}
			},
			"remove": func(t *rapid.T) {
				u := pick.Draw(t, "unit")
				if !slices.Contains(m.ending, u) {
					t.Skip()
				}
				r.Remove(u)
				m.units = slices.DeleteFunc(m.units, func(o *unit) bool { return o == u })
				m.open = slices.DeleteFunc(m.open, func(s *source) bool { return s.unit == u })
				delete(m.of, u)
			},
			"drain": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
					t.Skip()
				}
				want := m.running()
				if got := r.Drain(); !slices.Equal(got, want) {
					t.Fatalf("drain: %d units, want %d", len(got), len(want))
				}
				m.draining, m.ending = true, append(m.ending, want...)
			},
			"": func(t *rapid.T) {
				if !slices.Equal(r.Sources(), m.open) || !slices.Equal(r.Units(), m.units) || r.IsDraining() != m.draining {
					t.Fatalf("%d sources and %d units, draining %v; want %d, %d, %v", len(r.Sources()), len(r.Units()), r.IsDraining(), len(m.open), len(m.units), m.draining)
				}
				for _, u := range units {
					if !slices.Equal(u.Open(), m.of[u]) || r.Has(u) != slices.Contains(m.running(), u) {
						t.Fatalf("a unit has %d sources, want %d; it runs: %v", len(u.Open()), len(m.of[u]), r.Has(u))
					}
				}
				leave, err := r.Enter(context.Background(), context.Background())
				if m.draining != errors.Is(err, ErrNotRunning) {
					t.Fatalf("enter: %v", err)
				}
				if err == nil {
					leave()
				}
			},
		})
	})
}

// A start that failed leaves nothing open.
func TestRoster_clear(t *testing.T) {
	t.Parallel()
	r, s := newRoster(), new(source)
	r.Include(s)
	if got := r.Clear(); !slices.Equal(got, []*source{s}) || len(r.Sources()) > 0 {
		t.Errorf("%d were open, %d are", len(got), len(r.Sources()))
	}
}

// One change is made after the other. A drain waits for those that began, and for what they have run.
func TestRoster_enter(t *testing.T) {
	t.Parallel()
	r := newRoster()
	leave, err := r.Enter(t.Context(), t.Context())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.Enter(short, t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := r.Enter(t.Context(), short); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	entered := make(chan func())
	go func() {
		leave, err := r.Enter(t.Context(), t.Context())
		if err != nil {
			t.Error(err)
		}
		entered <- leave
	}()
	ran := false
	r.Go(func() { ran = true })
	leave()
	(<-entered)()
	if r.Wait(); !ran {
		t.Error("what a change has run was not waited for")
	}
}
