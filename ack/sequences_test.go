package ack

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSequences_isAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, model := newSequences(), map[uint64]*Delivery{}
		stride := rapid.SampledFrom([]uint64{1, 3, 64, 1 << 20, 1 << 60}).Draw(t, "stride")
		for _, n := range rapid.SliceOfN(rapid.Uint64Range(0, 400), 0, 1000).Draw(t, "moves") {
			seq := (n / 2) * stride
			switch d := model[seq]; {
			case n%2 == 0:
				d = &Delivery{Sequence: seq}
				model[seq] = d
				table.put(d)
			case d != nil:
				table.remove(&Delivery{Sequence: seq}) // another one
				table.remove(d)
				delete(model, seq)
			}
			if table.get(seq) != model[seq] || table.n != len(model) {
				t.Fatalf("%d: %p of %d, want %p of %d", seq, table.get(seq), table.n, model[seq], len(model))
			}
		}
		for _, d := range table.all() {
			if model[d.Sequence] != d {
				t.Fatalf("%d is not in it", d.Sequence)
			}
			delete(model, d.Sequence)
		}
		if len(model) > 0 {
			t.Fatalf("%v are left out", model)
		}
	})
}
