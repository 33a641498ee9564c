package ack

import (
	"slices"

	"github.com/relaymq/relay/internal/inhand"
)

// InHand is what is not settled, or not confirmed, with the highest sequence that was received.
func (s *Session) InHand() inhand.Snapshot {
	s.mu.Lock()
	h := inhand.Snapshot{To: s.top, Unsettled: make([]uint64, 0, s.bySeq.n)}
	for _, d := range s.bySeq.all() {
		h.Unsettled = append(h.Unsettled, d.Sequence)
	}
	s.mu.Unlock()
	slices.Sort(h.Unsettled)
	return h
}

// Live are the sequences of what is handed out and not settled.
func (s *Session) Live() map[uint64]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make(map[uint64]struct{}, s.leases.n)
	for d := s.leases.first; d != nil; d = d.next {
		list[d.Sequence] = struct{}{}
	}
	return list
}
