package inhand

import (
	"encoding/binary"
	"errors"
)

// Snapshot is what a session had not settled at a moment: the sequences of Unsettled, in order, and whatever was delivered after To. It is for the next
// holder of a durable: the server tells nobody which messages are outstanding.
type Snapshot struct {
	// Created is when the durable was made, in Unix nanoseconds; 0: nobody said it.
	Created   int64
	To        uint64
	Unsettled []uint64
}

// MarshalBinary writes the distances between the sequences: two bytes or so for each.
func (h Snapshot) MarshalBinary() ([]byte, error) {
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
func (h *Snapshot) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] != inHandFormat {
		return errInHand
	}
	b = b[1:]
	read := Snapshot{}
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
