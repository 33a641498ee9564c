package ack

import (
	"slices"
	"testing"
)

func FuzzInHand(f *testing.F) {
	for _, h := range []InHand{{}, {To: 7, Unsettled: []uint64{1, 2, 7}}, {To: 1 << 60, Unsettled: []uint64{3, 1 << 59}}} {
		f.Add(h.encode(-5))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, created, err := decodeInHand(b)
		if err != nil {
			return
		}
		again, at, err := decodeInHand(h.encode(created))
		if err != nil || at != created || again.To != h.To || !slices.Equal(again.Unsettled, h.Unsettled) {
			t.Errorf("%+v, %d became %+v, %d, %v", h, created, again, at, err)
		}
	})
}
