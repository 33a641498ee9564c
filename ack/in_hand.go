package ack

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// InHand is what a session had not settled at a moment: the sequences of Unsettled, in order, and whatever was delivered after To. It is for the next
// holder of a durable: the server tells nobody which messages are outstanding.
type InHand struct {
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

// inHandKey has one token less than the key of a record.
func (r *Records) inHandKey() string { return "hand." + r.stream + "." + r.durable }

// NoteInHand stores what this instance has in hand, in place of what was stored before.
func (r *Records) NoteInHand(ctx context.Context, h InHand) error {
	_, err := r.bucket.kv.Put(ctx, r.inHandKey(), h.encode(r.created.UnixNano()))
	return err
}

// InHand is what the holder noted last. The error is [jetstream.ErrKeyNotFound] when there is nothing of this durable.
func (r *Records) InHand(ctx context.Context) (h InHand, err error) {
	value, _, err := r.bucket.get(ctx, r.inHandKey())
	if err != nil {
		return h, err
	}
	h, created, err := decodeInHand(value)
	if err == nil && created != r.created.UnixNano() {
		err = jetstream.ErrKeyNotFound // of a durable that is gone
	}
	return h, err
}

// MarshalBinary is for whoever tells others, who read it with UnmarshalBinary.
func (h InHand) MarshalBinary() ([]byte, error) { return h.encode(0), nil }

// UnmarshalBinary is the reverse of MarshalBinary.
func (h *InHand) UnmarshalBinary(b []byte) (err error) {
	*h, _, err = decodeInHand(b)
	return err
}

// encode writes the distances between the sequences: two bytes or so for each.
func (h InHand) encode(created int64) []byte {
	b := binary.AppendVarint([]byte{inHandFormat}, created)
	b = binary.AppendUvarint(b, h.To)
	var last uint64
	for _, seq := range h.Unsettled {
		b = binary.AppendUvarint(b, seq-last)
		last = seq
	}
	return b
}

const inHandFormat = 1

var errInHand = errors.New("what the holder before had in hand cannot be read")

func decodeInHand(b []byte) (h InHand, created int64, err error) {
	if len(b) == 0 || b[0] != inHandFormat {
		return h, 0, errInHand
	}
	b = b[1:]
	created, n := binary.Varint(b)
	if n <= 0 {
		return h, 0, errInHand
	}
	b = b[n:]
	if h.To, n = binary.Uvarint(b); n <= 0 {
		return h, 0, errInHand
	}
	var last uint64
	for b = b[n:]; len(b) > 0; b = b[n:] {
		var distance uint64
		if distance, n = binary.Uvarint(b); n <= 0 {
			return h, 0, errInHand
		}
		last += distance
		h.Unsettled = append(h.Unsettled, last)
	}
	return h, created, nil
}
