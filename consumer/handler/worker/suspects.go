package worker

import (
	"sync"
	"sync/atomic"
)

// maxSuspects bounds what is remembered. The oldest goes first: it may end a process beside others once more.
const maxSuspects = 10_000

// suspects are the messages that were in hand when a process ended that had several. Each runs alone, until it has succeeded.
type suspects struct {
	n   atomic.Int64
	mu  sync.Mutex
	ids map[string]bool
	old []string // in the order in which they came; some are not in ids any more
}

func (s *suspects) none() bool { return s.n.Load() == 0 }

func (s *suspects) has(id string) bool {
	if s.none() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

func (s *suspects) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] {
		return
	}
	if s.ids == nil {
		s.ids = make(map[string]bool)
	}
	for len(s.old) >= maxSuspects {
		delete(s.ids, s.old[0])
		s.old = s.old[1:]
	}
	s.ids[id] = true
	s.old = append(s.old, id)
	s.n.Store(int64(len(s.ids)))
}

func (s *suspects) acquit(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
	if len(s.ids) == 0 {
		s.old = nil
	}
	s.n.Store(int64(len(s.ids)))
}
