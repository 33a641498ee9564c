package route

import (
	"sync/atomic"
	"time"
)

// succession is that of a route that a change has begun: it waits for the end of the one that it replaces. The zero value waits for none.
type succession struct{ now atomic.Pointer[following] }

// following is what is waited for, and since when.
type following struct {
	former *Route
	since  time.Time
}

// Follow has it wait for former.
func (s *succession) Follow(former *Route, now time.Time) { s.now.Store(&following{former, now}) }

// End says that the other one has ended.
func (s *succession) End() { s.now.Store(nil) }

// waits tells whether the other one has not ended yet, and since when it is waited for.
func (s *succession) waits() (since time.Time, yes bool) {
	if f := s.now.Load(); f != nil {
		return f.since, true
	}
	return time.Time{}, false
}

// running is how many handlers of the other one still run.
func (s *succession) running() int {
	if f := s.now.Load(); f != nil {
		return f.former.Group.Status().Running
	}
	return 0
}
