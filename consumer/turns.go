package consumer

import (
	"slices"
	"sync"
)

// A pull for a few bytes brings no message. So when the link is so slow that the part of each source is less than a pull is for,
// the sources with a backlog take turns. One source may ask when less than half of the limit is on its way to those that
// take turns; it may ask for more than is left then, or large messages would never come. Sources without a backlog do not
// wait: they ask for their part of the limit and no more, because what their parked pulls bring comes at once when something is
// published, or when what arrived too late comes again.

// turns is whose turn it is.
type turns struct {
	mu      sync.Mutex
	coming  map[*source]int // bytes
	total   int
	waiting []*source // the one that waits longest first
}

// may notes how many bytes are on their way to a source that takes turns, and reports whether it may ask for more. If not, it
// is woken when it is its turn. With more of 0 it does not wait any longer.
func (t *turns) may(s *source, coming, more, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(s, coming)
	i := slices.Index(t.waiting, s)
	switch {
	case more == 0 && i >= 0:
		t.waiting = slices.Delete(t.waiting, i, i+1)
	case more > 0 && i < 0:
		t.waiting = append(t.waiting, s)
	}
	first := len(t.waiting) > 0 && t.waiting[0] == s
	granted := first && 2*t.total <= limit
	if granted {
		t.waiting = slices.Delete(t.waiting, 0, 1)
		t.note(s, coming+more)
	}
	if len(t.waiting) > 0 && t.waiting[0] != s && 2*t.total <= limit {
		t.waiting[0].wake()
	}
	return granted
}

func (t *turns) note(s *source, coming int) {
	t.total += coming - t.coming[s]
	if coming == 0 {
		delete(t.coming, s)
		return
	}
	if t.coming == nil {
		t.coming = make(map[*source]int)
	}
	t.coming[s] = coming
}

// part is how many bytes the source may have on their way, how many a pull is for at least, and whether it takes turns.
func (s *source) part() (most, least int, byTurns bool) {
	limit := s.relay.link.coming()
	part := limit / max(1, len(s.relay.openSources()))
	switch {
	case part >= 2*s.least:
		return part, s.least, false
	case limit >= maxComing || s.backlog: // the link is not slow, or it waits for its turn
		return 2 * s.least, s.least, limit < maxComing
	default:
		return part, 1, false
	}
}

// mayAsk reports whether the source may ask for so many bytes more now; 0 says that it does not want to.
func (s *source) mayAsk(byTurns bool, coming, more int) bool {
	if !byTurns {
		coming, more = 0, 0
	}
	may := true
	if byTurns || s.turning {
		may = s.relay.link.turns.may(s, coming, more, s.relay.link.coming()) || !byTurns
	}
	s.turning, s.inLine = byTurns, byTurns && more > 0 && !may
	return may
}
