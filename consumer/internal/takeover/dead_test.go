package takeover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/inhand"
	"github.com/relaymq/relay/internal/retry"
)

// fellow is another instance, which has these in hand and answers to nothing but what is asked here.
type fellow struct {
	t    *testing.T
	hand []uint64
}

func (f fellow) ask(_ context.Context, question []byte) ([][]byte, error) {
	answer := Answer(question, func(q Question) *Takeover {
		if q.Stream != "JOBS" || q.Durable != "billing" || q.Created.IsZero() || q.Reads {
			f.t.Errorf("it is asked of %+v", q)
		}
		return New(Config{Delivered: func() inhand.Snapshot { return inhand.Snapshot{Unsettled: f.hand} }})
	})
	return [][]byte{answer}, nil
}

func yes() bool { return true }
func no() bool  { return false }

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
		h.mine.Store(&inhand.Snapshot{Unsettled: own})
		n, err := h.giveBackOfDead(t.Context(), fellow{t, others}.ask, no)
		if n != 0 || err != nil {
			t.Errorf("seed %d: although it may not: %d, %v", seed, n, err)
		}
		n, err = h.giveBackOfDead(t.Context(), fellow{t, others}.ask, yes)
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
	if n, err := h.giveBackOfDead(t.Context(), nil, nil); n != 0 || err != nil {
		t.Errorf("nothing is outstanding: %d, %v", n, err)
	}
	h = newHand(t, 6)
	h.take(6, 3)
	down, asked := errors.New("no answer"), 0
	silent := func(context.Context, []byte) ([][]byte, error) { asked++; return nil, down }
	if n, err := h.giveBackOfDead(t.Context(), silent, yes); n != 0 || !errors.Is(err, down) || asked != inHandTries {
		t.Errorf("asked %d times: %d, %v", asked, n, err)
	}
	odd := func(context.Context, []byte) ([][]byte, error) { return [][]byte{[]byte("what is that")}, nil }
	if n, err := h.giveBackOfDead(t.Context(), odd, yes); n != 0 || err == nil {
		t.Errorf("an answer that says nothing: %d, %v", n, err)
	}
	h.asked = func() *jetstream.ConsumerInfo {
		far := h.info()
		far.Delivered.Stream = far.AckFloor.Stream + mostNamed + 1
		return far
	}
	if n, err := h.giveBackOfDead(t.Context(), nil, nil); n != 0 || !errors.Is(err, errTooFar) {
		t.Errorf("far behind: %d, %v", n, err)
	}
	h.cfg.Ask = func(context.Context) (*jetstream.ConsumerInfo, error) { return nil, down }
	if n, err := h.giveBackOfDead(t.Context(), nil, nil); n != 0 || !errors.Is(err, down) {
		t.Errorf("the server does not answer: %d, %v", n, err)
	}
	h.wants("nothing")
}

// Nothing is given back while an instance runs that cannot say what it has in hand.
func TestFellows_GiveBackOfDead(t *testing.T) {
	t.Parallel()
	h := newHand(t, 6)
	dead := h.take(6, 4)
	var version atomic.Value
	version.Store("")
	sub, err := h.nc.Subscribe(control.StatusSubject("relay"), func(m *nats.Msg) {
		data, err := json.Marshal(control.Status{Instance: "b", Service: "relay", Version: version.Load().(string), Page: 1, Pages: 1})
		if err == nil {
			err = m.Respond(data)
		}
		if err != nil {
			t.Error(err)
		}
	})
	h.do(err)
	defer sub.Unsubscribe() //nolint:errcheck // the server ends
	var log bytes.Buffer
	f := Fellows{Conn: h.nc, Log: slog.New(slog.NewTextHandler(&log, nil)), Service: "relay", Route: "billing", Ask: fellow{t, dead[:1]}.ask}
	f.GiveBackOfDead(t.Context(), []*Takeover{h.Takeover})
	if !strings.Contains(log.String(), "instance b runs an earlier version") {
		t.Errorf("the log: %s", log.String())
	}
	h.wants("nothing")
	version.Store("v1")
	f.GiveBackOfDead(t.Context(), []*Takeover{h.Takeover})
	h.wants("what the dead had", dead[1:]...)
	f.Ask = func(context.Context, []byte) ([][]byte, error) { return nil, errors.New("no answer") }
	h.cfg.Log = f.Log
	log.Reset()
	f.GiveBackOfDead(t.Context(), []*Takeover{h.Takeover})
	if !strings.Contains(log.String(), "no answer") {
		t.Errorf("the log: %s", log.String())
	}
}

// What others are told is what was asked.
func TestAnswer(t *testing.T) {
	t.Parallel()
	h := New(Config{Delivered: func() inhand.Snapshot { return inhand.Snapshot{Unsettled: []uint64{7}} }})
	answer := func(question string, of *Takeover) string {
		return string(Answer([]byte(question), func(Question) *Takeover { return of }))
	}
	if got := answer("{", h); got != "" {
		t.Errorf("no question: %q", got)
	}
	if got := answer(`{"reads":true}`, h); got != ReadsIt {
		t.Errorf("it reads it: %q", got)
	}
	if got := answer(`{"reads":true}`, nil); got == ReadsIt || got == "" {
		t.Errorf("it does not read it: %q", got)
	}
	for of, want := range map[*Takeover]int{nil: 0, h: 1} {
		var in inhand.Snapshot
		if err := in.UnmarshalBinary([]byte(answer("{}", of))); err != nil || len(in.Unsettled) != want {
			t.Errorf("%+v, %v, want %d", in, err, want)
		}
	}
}
