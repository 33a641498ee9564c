package inhand

import (
	"slices"
	"testing"
)

func FuzzSnapshot(f *testing.F) {
	for _, h := range []Snapshot{{}, {Created: -5, To: 7, Unsettled: []uint64{1, 2, 7}}, {To: 1 << 60, Unsettled: []uint64{3, 1 << 59}}} {
		b, err := h.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Snapshot
		if h.UnmarshalBinary(b) != nil {
			return
		}
		b, err := h.MarshalBinary()
		if err == nil {
			err = again.UnmarshalBinary(b)
		}
		if err != nil || again.Created != h.Created || again.To != h.To || !slices.Equal(again.Unsettled, h.Unsettled) {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}
