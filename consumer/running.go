package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// running are the units that run, their open sources, and the changes under way. Once it drains, nothing begins any more.
type running struct {
	mu       sync.Mutex // also held where routes change, and for unit.closing
	units    []*unit    // those that run, or end
	open     atomic.Pointer[[]*source]
	draining bool

	late     chan struct{}  // holds a value for each source that is being opened late
	changing chan struct{}  // held by who changes the routes
	changes  sync.WaitGroup // changes under way
}

func newRunning() *running {
	return &running{late: make(chan struct{}, atOnce), changing: make(chan struct{}, 1)}
}

// sources are those that are open. The list is a new one at each change.
func (r *running) sources() []*source {
	if list := r.open.Load(); list != nil {
		return *list
	}
	return nil
}

// include adds a source to those that are pulled from. It returns false when relay or the unit drains.
func (r *running) include(s *source) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || s.unit != nil && s.unit.closing {
		return false
	}
	list := append(slices.Clone(r.sources()), s)
	r.open.Store(&list)
	if s.unit != nil {
		list := append(slices.Clone(s.unit.open()), s)
		s.unit.running.Store(&list)
	}
	return true
}

// replace puts a source in the place of one whose durable was lost. It returns false when relay or the unit drains.
func (r *running) replace(old, next *source) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || old.unit.closing {
		return false
	}
	for _, in := range []*atomic.Pointer[[]*source]{&r.open, &old.unit.running} {
		list := slices.Clone(*in.Load())
		list[slices.Index(list, old)] = next
		in.Store(&list)
	}
	return true
}

// closeSources ends what was opened, when Run cannot go on.
func (r *running) closeSources() {
	for _, s := range r.sources() {
		s.close()
	}
	r.open.Store(nil)
}

// add has start called for a unit, which runs from then on. It returns false, and does nothing, when relay drains.
func (r *running) add(u *unit, start func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	r.units = append(r.units, u)
	// Those that the start opened, before there was a unit.
	list := slices.DeleteFunc(slices.Clone(r.sources()), func(s *source) bool { return s.unit != u })
	u.running.Store(&list)
	start()
	return true
}

// remove forgets a unit that has ended.
func (r *running) remove(u *unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.units = slices.DeleteFunc(r.units, func(o *unit) bool { return o == u })
	list := slices.DeleteFunc(slices.Clone(r.sources()), func(s *source) bool { return s.unit == u })
	r.open.Store(&list)
	u.running.Store(nil)
}

// all are the units that run, or end.
func (r *running) all() []*unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.units)
}

// has tells whether the unit runs, and is not to end.
func (r *running) has(u *unit) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.units, u) && !u.closing
}

// drain begins the drain. It returns the units that are to end, but for those that end already.
func (r *running) drain() []*unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	list := slices.DeleteFunc(slices.Clone(r.units), func(u *unit) bool { return u.closing })
	for _, u := range list {
		u.closing = true
	}
	return list
}

// isDraining tells whether the instance is shutting down.
func (r *running) isDraining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining
}

// enter waits for the change before this one. It returns [ErrNotRunning] when relay drains, or ends is done first.
func (r *running) enter(ctx, ends context.Context) (leave func(), err error) {
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

// change has f run as a change, unless relay or the unit drains.
func (r *running) change(u *unit, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.draining && !u.closing {
		r.changes.Go(f)
	}
}

// commit has the units end, and calls f while nothing else begins or ends. It returns false, and does nothing, when relay drains.
func (r *running) commit(ends []*unit, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	for _, u := range ends {
		u.closing = true
	}
	f()
	return true
}
