package roster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// ErrNotRunning says that the instance drains.
var ErrNotRunning = errors.New("relay is not running")

// Member is what a [Roster] knows of a unit, which embeds it.
type Member[S comparable] struct {
	ending bool // Roster.mu is held for it
	open   atomic.Pointer[[]S]
}

// Of is for the roster.
func (m *Member[S]) Of() *Member[S] { return m }

// Open are the sources of the unit that are open. The list is a new one at each change.
func (m *Member[S]) Open() []S { return listOf(&m.open) }

func listOf[S any](p *atomic.Pointer[[]S]) []S {
	if list := p.Load(); list != nil {
		return *list
	}
	return nil
}

// Unit is of sources S.
type Unit[S comparable] interface {
	comparable
	Of() *Member[S]
}

// Roster has the units U with their sources S. Make it with [New]; its methods may be called by several goroutines.
type Roster[U Unit[S], S comparable] struct {
	unitOf func(S) (u U, has bool)

	mu       sync.Mutex
	units    []U
	open     atomic.Pointer[[]S]
	draining bool

	changing chan struct{} // held by who makes a change
	changes  sync.WaitGroup
}

// New has nothing that runs. unitOf tells whose a source is; a source may be opened before it is anybody's.
func New[U Unit[S], S comparable](unitOf func(S) (u U, has bool)) *Roster[U, S] {
	return &Roster[U, S]{unitOf: unitOf, changing: make(chan struct{}, 1)}
}

// Sources are those that are open, of all units. The list is a new one at each change.
func (r *Roster[U, S]) Sources() []S { return listOf(&r.open) }

// Units are those that run or end.
func (r *Roster[U, S]) Units() []U {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.units)
}

// Has tells whether the unit runs, and is not to end.
func (r *Roster[U, S]) Has(u U) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.units, u) && !u.Of().ending
}

// ends tells whether nothing may begin for a source any more.
func (r *Roster[U, S]) ends(s S) (m *Member[S], ends bool) {
	if u, has := r.unitOf(s); has {
		m = u.Of()
	}
	return m, r.draining || m != nil && m.ending
}

// Include adds a source that was opened. It returns false, and does nothing, when the instance drains or the unit ends.
func (r *Roster[U, S]) Include(s S) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ends := r.ends(s)
	if ends {
		return false
	}
	list := append(slices.Clone(r.Sources()), s)
	r.open.Store(&list)
	if m != nil {
		list := append(slices.Clone(m.Open()), s)
		m.open.Store(&list)
	}
	return true
}

// Replace puts a source of the same unit in the place of one. It returns false, and does nothing, when the instance drains or the unit ends.
func (r *Roster[U, S]) Replace(old, next S) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ends := r.ends(old)
	if ends {
		return false
	}
	for _, in := range []*atomic.Pointer[[]S]{&r.open, &m.open} {
		list := slices.Clone(*in.Load())
		list[slices.Index(list, old)] = next
		in.Store(&list)
	}
	return true
}

// Clear forgets the sources of a start that failed, and returns them.
func (r *Roster[U, S]) Clear() []S {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.Sources()
	r.open.Store(nil)
	return list
}

// Add has a unit run: with the sources that were opened for it before, and then it calls start. It returns false, and does nothing, when the
// instance drains.
func (r *Roster[U, S]) Add(u U, start func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	r.units = append(r.units, u)
	list := slices.DeleteFunc(slices.Clone(r.Sources()), func(s S) bool { return !r.isOf(s, u) })
	u.Of().open.Store(&list)
	start()
	return true
}

func (r *Roster[U, S]) isOf(s S, u U) bool {
	of, has := r.unitOf(s)
	return has && of == u
}

// Remove forgets a unit that has ended, with its sources.
func (r *Roster[U, S]) Remove(u U) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.units = slices.DeleteFunc(r.units, func(o U) bool { return o == u })
	list := slices.DeleteFunc(slices.Clone(r.Sources()), func(s S) bool { return r.isOf(s, u) })
	r.open.Store(&list)
	u.Of().open.Store(nil)
}

// Drain has the instance drain. It returns the units that are to end now: those that end already are not among them.
func (r *Roster[U, S]) Drain() []U {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	list := slices.DeleteFunc(slices.Clone(r.units), func(u U) bool { return u.Of().ending })
	for _, u := range list {
		u.Of().ending = true
	}
	return list
}

// IsDraining tells whether the instance drains.
func (r *Roster[U, S]) IsDraining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining
}

// Enter begins a change once the one before has left. It returns an error, [ErrNotRunning] when the instance drains or ends is done first.
func (r *Roster[U, S]) Enter(ctx, ends context.Context) (leave func(), err error) {
	r.mu.Lock()
	ok := !r.draining
	if ok {
		r.changes.Add(1)
	}
	r.mu.Unlock()
	if !ok {
		return nil, ErrNotRunning
	}
	select {
	case r.changing <- struct{}{}:
	case <-ctx.Done():
		r.changes.Done()
		return nil, fmt.Errorf("another change is still in progress: %w", context.Cause(ctx))
	case <-ends.Done():
		r.changes.Done()
		return nil, ErrNotRunning
	}
	return func() {
		<-r.changing
		r.changes.Done()
	}, nil
}

// Change has f run beside others as a change of a unit, unless the instance drains or the unit ends.
func (r *Roster[U, S]) Change(u U, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.draining && !u.Of().ending {
		r.changes.Go(f)
	}
}

// Commit has units end, and calls f while nothing else begins or ends. It returns false, and does nothing, when the instance drains.
func (r *Roster[U, S]) Commit(ends []U, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	for _, u := range ends {
		u.Of().ending = true
	}
	f()
	return true
}

// Go has f run as a part of the change that the caller makes: a drain waits for it, too.
func (r *Roster[U, S]) Go(f func()) { r.changes.Go(f) }

// Wait waits for the changes under way.
func (r *Roster[U, S]) Wait() { r.changes.Wait() }
