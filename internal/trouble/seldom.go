package trouble

import (
	"sync"
	"time"
)

// Seldom lets one log line a minute through, and counts those that it keeps back: what goes wrong for one message while
// something is away goes wrong for thousands. The zero value is ready.
type Seldom struct {
	mu   sync.Mutex
	last time.Time
	kept int
}

// May tells whether the line may be written now, and how many were kept back since the last one.
func (s *Seldom) May(now time.Time) (kept int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.IsZero() && now.Sub(s.last) < time.Minute {
		s.kept++
		return 0, false
	}
	kept, s.kept, s.last = s.kept, 0, now
	return kept, true
}
