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
	ids map[string]class // untried or tried
	old []string         // in the order in which they came; some are not in ids any more
}

// class is what is known of a message.
func (s *suspects) class(id string) class {
	if s.n.Load() == 0 {
		return ordinary
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// add makes a message a suspect: an untried one, unless it has run alone before.
func (s *suspects) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.remembered(id)
	s.ids[id] = max(of, untried)
}

// failed notes that a message failed while it ran alone.
func (s *suspects) failed(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remembered(id)
	s.ids[id] = tried
}

// remembered makes room for a message. It returns what is known of it.
func (s *suspects) remembered(id string) class {
	if of := s.ids[id]; of != ordinary {
		return of
	}
	if s.ids == nil {
		s.ids = make(map[string]class)
	}
	for len(s.old) >= maxSuspects {
		delete(s.ids, s.old[0])
		s.old = s.old[1:]
	}
	s.old = append(s.old, id)
	s.n.Store(int64(len(s.ids) + 1))
	return ordinary
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
