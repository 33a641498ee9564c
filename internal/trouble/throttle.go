package trouble

import (
	"sync"
	"time"
)

// Throttle lets one log line a minute through, and counts those that it keeps back: what goes wrong for one message while
// something is away goes wrong for thousands. The zero value is ready.
type Throttle struct {
	mu   sync.Mutex
	last time.Time
	kept int
}

// Allow tells whether the line may be written now, and how many were kept back since the last one.
func (t *Throttle) Allow(now time.Time) (kept int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.last.IsZero() && now.Sub(t.last) < time.Minute {
		t.kept++
		return 0, false
	}
	kept, t.kept, t.last = t.kept, 0, now
	return kept, true
}
