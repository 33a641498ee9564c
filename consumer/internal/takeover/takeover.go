package takeover

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/inhand"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/trouble"
)

// Many is how many messages may be named at once: as many as may be outstanding.
const Many = provision.MaxAckPending

const (
	// missingTimes is how often what is missing is asked for again, once for each check. Then AckWait brings it.
	missingTimes = 5
	// noteEvery is the time between two notes: what is delivered meanwhile is what the next holder names one by one.
	noteEvery = time.Second
	// noteFrom is how far the oldest message in hand must be behind for a note.
	noteFrom = Many / 2
	// noteTimeout bounds the storing of one.
	noteTimeout = 5 * time.Second
)

// Records are where a holder notes what it has in hand.
type Records interface {
	// InHand is what was noted last; [jetstream.ErrKeyNotFound]: nothing.
	InHand(context.Context) (inhand.Snapshot, error)
	NoteInHand(context.Context, inhand.Snapshot) error
	// Later are the messages that wait at the server for their delay, by sequence.
	Later(context.Context) (map[uint64]struct{}, error)
}

// Config says of which durable, and how it is asked about.
type Config struct {
	Conn            *nats.Conn
	Log             *slog.Logger
	Stream, Durable string
	// AckWait is asked for when it is needed.
	AckWait func() time.Duration
	// Holds tells whether this instance may still start messages of the durable.
	Holds func() bool
	// Records and InHand are asked for when the durable is open. InHand is what this instance has.
	Records func() Records
	InHand  func() inhand.Snapshot
	// Delivered is InHand and what has arrived and was not looked at yet. It may block for moments.
	Delivered func() inhand.Snapshot
	// Ask asks the server for the durable as it is.
	Ask func(context.Context) (*jetstream.ConsumerInfo, error)
}

// Takeover is of one durable. Its methods are for one goroutine each: [Takeover.TakeBack] before the others begin, [Takeover.StillMissing] for the pull
// loop, [Takeover.GiveBackAgain] for whoever looks after the durable, and [Takeover.NoteInHand] for one of its own. [Takeover.GiveBack],
// [Answer] and [Fellows] are for all.
type Takeover struct {
	cfg     Config
	back    span
	missing missing
}

// New asks nobody.
func New(cfg Config) *Takeover { return &Takeover{cfg: cfg} }

// span are sequences that are to be given back, both ends included.
type span struct{ from, to, consumer uint64 }

// TakeBack gives back what the holder before had in hand, when this instance takes the durable over. What takes long goes on in NoteInHand.
func (t *Takeover) TakeBack(ctx context.Context, info *jetstream.ConsumerInfo) {
	from, to := info.AckFloor.Stream+1, info.Delivered.Stream
	t.back = span{to + 1, to, info.Delivered.Consumer}
	if info.NumAckPending == 0 {
		return
	}
	t.back.from = from
	var noted []uint64
	if to-from >= Many {
		h, err := t.cfg.Records().InHand(ctx)
		if err == nil {
			noted, from = h.Unsettled, min(max(from, h.To+1), to+1)
		} else if !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.cfg.Log.Warn("cannot read what the previous holder had in hand; relay searches for those messages", "error", err)
		}
	}
	if _, err := t.GiveBack(ctx, t.back.consumer, slices.Values(noted)); err == nil {
		t.back.from = from
	}
	if to+1-t.back.from < 4*Many { // it does not take long; else it goes on beside what is pulled
		t.giveBackRest(ctx)
	}
	t.cfg.Log.Info("gave back the messages that the previous holder had in hand", "count", info.NumAckPending, "noted", len(noted), "looked_at", to+1-from)
}

// giveBackRest gives back what TakeBack left over. After AckWait all of it has come anyway.
func (t *Takeover) giveBackRest(ctx context.Context) {
	b, end := &t.back, time.Now().Add(t.cfg.AckWait())
	to, err := t.GiveBack(ctx, b.consumer, func(yield func(uint64) bool) {
		for seq := b.from; seq <= b.to && yield(seq); seq++ {
			if seq%least == 0 && (!t.cfg.Holds() || time.Now().After(end)) {
				return
			}
		}
	})
	b.from = max(b.from, to+1)
	if err != nil {
		t.cfg.Log.Warn("not all messages that the former holder had in hand could be given back; NATS redelivers the rest after ack_wait", "error", err)
	}
}

// missing is what is waited for and has been asked for again. A NAK may be lost, and a pull of the holder before may have got something after it was
// thrown out: what of that is not asked for again comes after AckWait only.
type missing struct {
	top   uint64 // what was delivered before the check before this one is not on its way any more
	times int
}

// Gaps are what was delivered to this instance with a sequence of the durable missing before it.
type Gaps interface {
	Missing() bool
	Top() uint64 // of the stream, that was received
	To() uint64  // up to which something is missing
}

// StillMissing is the sequence up to which what is outstanding and not in hand may be given back once more; 0: nothing.
func (t *Takeover) StillMissing(gaps Gaps) (to uint64) {
	m := &t.missing
	if !gaps.Missing() {
		*m = missing{}
		return 0
	}
	if to = m.top; m.times >= missingTimes {
		to = 0
	} else if to > 0 {
		m.times++
	}
	m.top = gaps.Top()
	return min(to, gaps.To())
}

// GiveBackAgain gives back what is outstanding on the server up to that sequence and not in the hand of this instance.
func (t *Takeover) GiveBackAgain(ctx context.Context, info *jetstream.ConsumerInfo, to uint64) {
	from := info.AckFloor.Stream + 1
	to = min(to, info.Delivered.Stream)
	if to < from || to-from >= 4*Many || !t.cfg.Holds() {
		return
	}
	inHand := t.cfg.InHand().Unsettled
	_, err := t.GiveBack(ctx, info.Delivered.Consumer, between(from, to, inHand))
	t.cfg.Log.Info("messages that are missing are given back once more", "outstanding", info.NumAckPending, "in_hand", len(inHand), "error", err)
}

// between are the sequences of a span but for some, which are in order.
func between(from, to uint64, except []uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for seq := from; seq <= to; seq++ {
			if _, is := slices.BinarySearch(except, seq); !is && !yield(seq) {
				return
			}
		}
	}
}

// NoteInHand gives back what TakeBack left over, and then notes what is in hand, for the next holder, while the oldest is so far behind that not all since
// can be named. The note of the holder before is valid until it begins. It returns when ctx is done.
func (t *Takeover) NoteInHand(ctx context.Context) {
	t.giveBackRest(ctx)
	if t.back.from <= t.back.to {
		select { // it comes after AckWait
		case <-ctx.Done():
			return
		case <-time.After(t.cfg.AckWait()):
		}
	}
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	var noted inhand.Snapshot
	var failed trouble.Throttle
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := t.cfg.InHand()
		h.To = max(h.To, t.back.to) // what was delivered before came back, or comes
		if !t.cfg.Holds() || len(h.Unsettled) == 0 || h.To-h.Unsettled[0] < noteFrom || h.To == noted.To && slices.Equal(h.Unsettled, noted.Unsettled) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, noteTimeout)
		err := t.cfg.Records().NoteInHand(call, h)
		cancel()
		if err == nil {
			noted = h
		} else if kept, may := failed.Allow(time.Now()); may && ctx.Err() == nil {
			t.cfg.Log.Warn("cannot record which messages are in hand; a takeover may take longer", "error", err, "kept_back", kept)
		}
	}
}
