package takeover

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/retry"
)

// living are two instances that have these in hand, one of them this instance.
func living(t *testing.T, others, own []uint64, may bool) Living {
	answer, err := ack.InHand{Unsettled: others}.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return Living{
		Others: func(context.Context) ([][]byte, error) { return [][]byte{answer}, nil },
		Own:    func() ack.InHand { return ack.InHand{Unsettled: own} },
		May:    func() bool { return may },
	}
}

// What nobody has in hand who lives, and what does not wait for a delay of its own, was in hand of the dead.
func TestGiveBackOfDead(t *testing.T) {
	t.Parallel()
	for range 5 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		h := newHand(t, 60)
		kept := h.take(50, 1+random.IntN(50))
		h.do(h.records.Put(t.Context(), kept[0], 1, retry.Record{Attempts: 1, Due: time.Now().Add(time.Hour)}))
		var others, own, dead []uint64
		for _, seq := range kept[1:] {
			list := []*[]uint64{&others, &own, &dead}[random.IntN(3)]
			*list = append(*list, seq)
		}
		info := h.info()
		n, err := h.GiveBackOfDead(t.Context(), info, living(t, others, own, false))
		if n != 0 || err != nil {
			t.Errorf("seed %d: although it may not: %d, %v", seed, n, err)
		}
		n, err = h.GiveBackOfDead(t.Context(), info, living(t, others, own, true))
		if err != nil || n < len(dead) {
			t.Errorf("seed %d: %d of %d, %v", seed, n, len(dead), err)
		}
		want := slices.Clone(dead)
		for seq := uint64(51); seq <= 60; seq++ {
			want = append(want, seq) // delivered to nobody yet
		}
		h.wants("those of the dead, and new ones", want...)
	}
}

// Nothing is given back while the server or an instance does not answer, when the answer is none, or when the look would be too long.
func TestGiveBackOfDead_inDoubt(t *testing.T) {
	t.Parallel()
	h := newHand(t, 6)
	h.take(6, 0)
	h.settled()
	if n, err := h.GiveBackOfDead(t.Context(), h.info(), Living{}); n != 0 || err != nil {
		t.Errorf("nothing is outstanding: %d, %v", n, err)
	}
	h = newHand(t, 6)
	h.take(6, 3)
	down, asked := errors.New("no answer"), 0
	l := living(t, nil, nil, true)
	l.Others = func(context.Context) ([][]byte, error) { asked++; return nil, down }
	if n, err := h.GiveBackOfDead(t.Context(), h.info(), l); n != 0 || !errors.Is(err, down) || asked != inHandTries {
		t.Errorf("asked %d times: %d, %v", asked, n, err)
	}
	l.Others = func(context.Context) ([][]byte, error) { return [][]byte{[]byte("what is that")}, nil }
	if n, err := h.GiveBackOfDead(t.Context(), h.info(), l); n != 0 || err == nil {
		t.Errorf("an answer that says nothing: %d, %v", n, err)
	}
	far := h.info()
	far.Delivered.Stream = far.AckFloor.Stream + mostNamed + 1
	if n, err := h.GiveBackOfDead(t.Context(), far, living(t, nil, nil, true)); n != 0 || !errors.Is(err, errTooFar) {
		t.Errorf("far behind: %d, %v", n, err)
	}
	h.wants("nothing")
}
