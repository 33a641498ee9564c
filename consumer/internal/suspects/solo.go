package suspects

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/transient"
)

// soloSlice is how long suspects may keep the others waiting at a stretch, the run that is then under way apart. The others
// then get as long as they waited, if they had anything to do.
const soloSlice = time.Second

// acquitPatience is how long the others wait until it is written down that the last suspect ended nothing.
const acquitPatience = 2 * patience

// Solo runs the suspects of all guarded routes of the process, one at a time, while nothing else runs in it.
type Solo struct {
	mu      sync.Mutex // held for the three below; never where a group's lock is held
	groups  []*supervise.Group
	removed []*supervise.Group // those in which handlers that were given up still run
	holding bool               // the groups are held

	kicked  chan struct{}
	accused atomic.Int64 // suspects of which it is written that they run alone
	// certain: no handler that was given up runs on, so that whatever ends the process is the message that runs.
	certain atomic.Bool
}

// NewSolo has no groups.
func NewSolo() *Solo { return &Solo{kicked: make(chan struct{}, 1)} }

// Add has the suspects of a group run alone, and the group wait for those of others.
func (s *Solo) Add(g *supervise.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups = append(slices.Clip(s.groups), g)
	if s.holding {
		g.Hold()
	}
}

// Remove takes out a group that has ended. Its handlers that were given up may run on, and end the process.
func (s *Solo) Remove(g *supervise.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.groups, g) {
		return // its handlers work in another process
	}
	s.groups = slices.DeleteFunc(slices.Clone(s.groups), func(o *supervise.Group) bool { return o == g })
	s.removed = append(s.removed, g)
	s.left()
}

// left is how many handlers of removed groups were given up and run nevertheless. Groups without are forgotten. s.mu is held.
func (s *Solo) left() (stuck int) {
	s.removed = slices.DeleteFunc(s.removed, func(g *supervise.Group) bool {
		_, n := g.Busy()
		stuck += n
		return n == 0
	})
	return stuck
}

// all are the groups that there are. The slice is not changed any more.
func (s *Solo) all() []*supervise.Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups
}

// hold holds all groups.
func (s *Solo) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = true
	for _, g := range s.groups {
		g.Hold()
	}
}

// release lets all groups go on.
func (s *Solo) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = false
	for _, g := range s.groups {
		g.Release()
	}
}

// Kick says that a suspect waits, or that nothing runs any more. It does not block.
func (s *Solo) Kick() {
	select {
	case s.kicked <- struct{}{}:
	default:
	}
}

// Accused says that a suspect is about to run alone, and that this is written down.
func (s *Solo) Accused() { s.accused.Add(1) }

// Certain tells whether no handler that was given up runs on, so that whatever ends the process now is the suspect that runs.
func (s *Solo) Certain() bool { return s.certain.Load() }

// Any tells whether there are groups.
func (s *Solo) Any() bool { return len(s.all()) > 0 }

// Acquitted says that a suspect is not accused any more.
func (s *Solo) Acquitted() {
	s.accused.Add(-1)
	s.Kick()
}

// Run serves until ctx is done.
func (s *Solo) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kicked:
		}
		began := time.Now()
		started := s.phase(ctx)
		s.rest(ctx, time.Since(began), started)
	}
}

// phase holds all groups, waits until nothing runs, which the timeouts of the routes bound, and runs suspects for a slice. It
// returns how many attempts were started so far, before the others may go on.
func (s *Solo) phase(ctx context.Context) (started uint64) {
	s.hold()
	defer func() {
		started = s.started()
		s.release()
	}()
	if !s.calm(ctx) {
		return
	}
	for began := time.Now(); time.Since(began) < soloSlice && s.start(); {
		if !s.calm(ctx) {
			return
		}
	}
	return
}

func (s *Solo) started() (n uint64) {
	for _, g := range s.all() {
		n += g.Started()
	}
	return n
}

func (s *Solo) start() bool {
	for _, g := range s.all() {
		if g.StartAlone() {
			return true
		}
	}
	return false
}

// calm waits until nothing runs, and until it is written down that what ran ended nothing: else it would be charged with what
// the others do. It returns false when ctx was done first.
func (s *Solo) calm(ctx context.Context) bool {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	began := time.Now()
	for {
		running, stuck := s.busy()
		if running > 0 {
			began = time.Now()
		} else if s.accused.Load() == 0 || time.Since(began) > acquitPatience {
			s.certain.Store(stuck == 0)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.kicked:
		case <-look.C:
		}
	}
}

func (s *Solo) busy() (running, stuck int) {
	for _, g := range s.all() {
		r, st := g.Busy()
		running, stuck = running+r, stuck+st
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return running, stuck + s.left()
}

// rest leaves the process to the others for as long as they waited, unless they have nothing to do: then none was started
// since. What waited for the suspects starts when these have ended, at once.
func (s *Solo) rest(ctx context.Context, d time.Duration, started uint64) {
	const step = 10 * time.Millisecond
	until := time.Now().Add(d)
	if transient.Pause(ctx, step); s.started() == started {
		return
	}
	transient.Pause(ctx, time.Until(until))
}
