package ack

import (
	"encoding/binary"
	"errors"
	"slices"
)

// InHand is what a session had not settled at a moment: the sequences of Unsettled, in order, and whatever was delivered after To. It is for the next
// holder of a durable: the server tells nobody which messages are outstanding.
type InHand struct {
	// Created is when the durable was made, in Unix nanoseconds; 0: nobody said it.
	Created   int64
	To        uint64
	Unsettled []uint64
}

// InHand is what is not settled, or not confirmed, with the highest sequence that was received.
func (s *Session) InHand() InHand {
	s.mu.Lock()
	h := InHand{To: s.top, Unsettled: make([]uint64, 0, s.bySeq.n)}
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

// MarshalBinary writes the distances between the sequences: two bytes or so for each.
func (h InHand) MarshalBinary() ([]byte, error) {
	b := binary.AppendVarint([]byte{inHandFormat}, h.Created)
	b = binary.AppendUvarint(b, h.To)
	var last uint64
	for _, seq := range h.Unsettled {
		b = binary.AppendUvarint(b, seq-last)
		last = seq
	}
	return b, nil
}

const inHandFormat = 1

var errInHand = errors.New("what the holder before had in hand cannot be read")

// UnmarshalBinary is the reverse of MarshalBinary.
func (h *InHand) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] != inHandFormat {
		return errInHand
	}
	b = b[1:]
	read := InHand{}
	var n int
	if read.Created, n = binary.Varint(b); n <= 0 {
		return errInHand
	}
	b = b[n:]
	if read.To, n = binary.Uvarint(b); n <= 0 {
		return errInHand
	}
	var last uint64
	for b = b[n:]; len(b) > 0; b = b[n:] {
		var distance uint64
		if distance, n = binary.Uvarint(b); n <= 0 {
			return errInHand
		}
		last += distance
		read.Unsettled = append(read.Unsettled, last)
	}
	*h = read
	return nil
}
