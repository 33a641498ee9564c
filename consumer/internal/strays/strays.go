// Package strays has what an instance knows of messages that arrive on a durable where none of its routes wants them: while instances with different
// routes share the durable, after a route was taken away from one, after the stream got more subjects. Such a message is never handled here. It goes
// back soon, for another instance may have the route. When it keeps coming, or when many do, it is to be kept elsewhere, where it waits for its route
// without filling the durable.
package strays

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

const (
	// A stray comes back after delay, doubled each time, and is kept when it arrives for the tries-th time: after about three seconds.
	delay = 100 * time.Millisecond
	tries = 6
	// manyFrom is how many deliveries of the durable may be outstanding before strays are kept at once, and doubtTo how many before those are, too, that may
	// have a route.
	manyFrom = 1024
	doubtTo  = provision.MaxAckPending / 2
	// paths is how many are being kept at once, and maxWaiting how many may wait for that before no more is to be pulled.
	paths      = 64
	maxWaiting = 1024
	// toldEvery is how often the log tells of those of a subject, and how long after the last one nobody is told any more.
	toldEvery = time.Minute
)

// Wanted is a subject that the durable is for and that no route of this instance wants.
type Wanted struct {
	Pattern string
	Route   string // which has it on another instance; [retry.NoRoute]: another one with the name of a route of this instance
}

// Strays are those of one durable. Its methods are for all goroutines.
type Strays struct {
	log    *slog.Logger
	paths  *pool.Pool
	keeps  atomic.Int64 // wait to be kept
	room   func()
	unsure atomic.Bool

	mu          sync.Mutex
	since, last time.Time
	example     string
	holds       []string // subjects of the stream
	wanted      []Wanted // most specific first
	looked      time.Time
	told        map[string]*count
	empty       map[string]bool // routes of which the stream holds no subject
}

// count is what the log has not said of a subject.
type count struct {
	n       int
	at      time.Time // when it last said something
	example string
}

// New is for a durable of which nothing is known yet. Room is called when strays wait no longer for being kept, so that more may be pulled.
func New(log *slog.Logger, room func()) *Strays {
	return &Strays{log: log, paths: pool.New(paths), room: room, told: make(map[string]*count), empty: make(map[string]bool)}
}

// Unknown is set once there was a message that no route ever configured on the durable wants.
func (s *Strays) Unknown() *atomic.Bool { return &s.unsure }

// Learn notes what the stream holds and what the durable is for beside the subjects of the routes that are here, by a look that began then.
func (s *Strays) Learn(holds []string, wanted []Wanted, looked time.Time) {
	slices.SortFunc(wanted, func(a, b Wanted) int {
		if c := subject.Compare(a.Pattern, b.Pattern); c != 0 {
			return c
		}
		return strings.Compare(a.Route, b.Route)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds, s.wanted, s.looked = holds, wanted, looked
}

// Empty notes that the stream holds no subject of a route, and tells whether it holds none since just now.
func (s *Strays) Empty(route string) (since bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since = !s.empty[route]
	s.empty[route] = true
	return since
}

// NotEmpty notes that the stream holds subjects of a route.
func (s *Strays) NotEmpty(route string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.empty, route)
}

// IsEmpty tells whether the route gets nothing, because the stream holds none of its subjects.
func (s *Strays) IsEmpty(route string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.empty[route]
}

// WantedBy is the route that this instance does not have and that the subject is for, and what is said of it. What is not
// known was never configured on the durable.
func (s *Strays) WantedBy(literal string) (pattern, route string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.wanted {
		if subject.Matches(d.Pattern, literal) {
			return d.Pattern, d.Route, true
		}
	}
	for _, held := range s.holds {
		if subject.Matches(held, literal) {
			return held, retry.NoRoute, false
		}
	}
	return "others", retry.NoRoute, false
}

// GoesBack tells whether one that is for that route goes back to its durable, and for how long, or is to be kept. Pending is how many deliveries of the
// durable are outstanding. In doubt, the durable is to be looked at: another instance may have given it the route.
func (s *Strays) GoesBack(route string, deliveries uint64, pending int) (after time.Duration, back, doubt bool) {
	back = deliveries < tries && pending <= manyFrom
	if !back && route == retry.NoRoute && pending < doubtTo && !s.sure(deliveries) {
		back, doubt = true, true
	}
	return delay << (min(deliveries, tries) - 1), back, doubt
}

// sure tells whether the durable was looked at since a message that comes for the nth time came for the first time. Before, another
// instance may have given the durable the route that the message is for.
func (s *Strays) sure(deliveries uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.looked) < delay*(1<<(min(deliveries, 2*tries)-1)-1) // what it was away
}

// Keep has one kept by f, which may block, when there is a path for it. Keep does not block.
func (s *Strays) Keep(f func()) {
	s.keeps.Add(1)
	s.paths.Go(func() {
		f()
		if s.keeps.Add(-1) == maxWaiting/2 {
			s.room()
		}
	})
}

// Many tells whether so many wait to be kept that no more is to be pulled.
func (s *Strays) Many() bool { return s.keeps.Load() > maxWaiting }

// Wait blocks until all are kept. Nothing is given to Keep any more.
func (s *Strays) Wait() { s.paths.Wait() }

// Came notes one. Pattern is what it is counted under.
func (s *Strays) Came(pattern, literal string) {
	now := time.Now()
	s.mu.Lock()
	if now.Sub(s.last) > toldEvery {
		s.since = now
	}
	s.last, s.example = now, literal
	c := s.told[pattern]
	if c == nil {
		c = new(count)
		s.told[pattern] = c
	}
	c.n++
	c.example = literal
	s.mu.Unlock()
	s.Tell(now)
}

// Tell logs what came, once a minute for each subject.
func (s *Strays) Tell(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pattern, c := range s.told {
		if now.Sub(c.at) < toldEvery {
			continue
		}
		if c.n == 0 {
			delete(s.told, pattern)
			continue
		}
		s.log.Warn("messages arrive that no route of this instance wants; they are given back for another instance, and those that none takes are kept in the retry stream",
			"subjects", pattern, "count", c.n, "example", c.example)
		c.n, c.at = 0, now
	}
}

// Lately tells since when strays come, if one came within the last minute.
func (s *Strays) Lately() (since time.Time, example string, lately bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.example, !s.last.IsZero() && time.Since(s.last) <= toldEvery
}
