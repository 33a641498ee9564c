package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/trouble"
)

// The server pins whoever it delivers to while nobody is pinned, and tells it the pin with each message. A change of the leader drops the pin.
// What the pin is for: provision/pin.go.

// pinHeader is what the server adds to each message.
const pinHeader = "Nats-Pin-Id"

// takeOver throws out the pulls of the holder before.
func (s *source) takeOver(ctx context.Context, stream jetstream.Stream) error {
	if err := stream.UnpinConsumer(ctx, s.durable, provision.PinGroup); err != nil {
		return fmt.Errorf("taking over durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return nil
}

// takeBack gives back what the holder before had in hand: nobody else settles it any more. The server does not tell what is outstanding, and ignores
// a NAK of what is not: so all from the ack floor to what was delivered are named, or, when that is far, those that the holder noted and what
// was delivered since. A NAK may be lost by a change of the leader; what it was for comes after AckWait then, and ordered routes wait for it.
func (s *source) takeBack(ctx context.Context, info *jetstream.ConsumerInfo) {
	from, to := info.AckFloor.Stream+1, info.Delivered.Stream
	s.back = span{to + 1, to, info.Delivered.Consumer}
	if info.NumAckPending == 0 {
		return
	}
	s.back.from = from
	var noted []uint64
	if to-from >= maxAckPending {
		h, err := s.records.InHand(ctx)
		if err == nil {
			noted, from = h.Unsettled, min(max(from, h.To+1), to+1)
		} else if !errors.Is(err, jetstream.ErrKeyNotFound) {
			s.log.Warn("cannot read what the previous holder had in hand; relay looks for it", "error", err)
		}
	}
	if _, err := s.giveBack(ctx, s.back.consumer, slices.Values(noted)); err == nil {
		s.back.from = from
	}
	if to+1-s.back.from < 4*maxAckPending { // it does not take long; else it goes on beside what is pulled
		s.giveBackRest(ctx)
	}
	s.log.Info("what the holder before had in hand is given back", "count", info.NumAckPending, "noted", len(noted), "looked_at", to+1-from)
}

// span are sequences that are to be given back, both ends included.
type span struct{ from, to, consumer uint64 }

// giveBackRest gives back what takeBack left over. After AckWait all of it has come anyway.
func (s *source) giveBackRest(ctx context.Context) {
	b, end := &s.back, time.Now().Add(s.routes[0].cfg.AckWait)
	to, err := s.giveBack(ctx, b.consumer, func(yield func(uint64) bool) {
		for seq := b.from; seq <= b.to && yield(seq); seq++ {
			if seq%giveBackLeast == 0 && (!s.mayStart() || time.Now().After(end)) {
				return
			}
		}
	})
	b.from = max(b.from, to+1)
	if err != nil {
		s.log.Warn("not all messages that the former holder had in hand could be given back; NATS delivers the rest again after ack_wait", "error", err)
	}
}

const (
	// giveBackLeast and giveBackMost NAKs are sent before the server is waited for: it queues what it has not looked at without a bound.
	giveBackLeast, giveBackMost = 2048, 16_384
	// giveBackFor is how long the server is to be busy with them. What renews the lease waits behind them.
	giveBackFor = 250 * time.Millisecond
)

// giveBack gives these sequences back, and waits until the server has looked at all of them. It returns the last one that the server has looked
// at. Consumer is a sequence of the durable that was delivered.
func (s *source) giveBack(ctx context.Context, consumer uint64, list iter.Seq[uint64]) (to uint64, err error) {
	prefix, suffix := "$JS.ACK."+s.stream+"."+s.durable+".1.", fmt.Sprintf(".%d.%d.0", consumer, time.Now().UnixNano())
	subject := func(seq uint64) string { return prefix + strconv.FormatUint(seq, 10) + suffix }
	n, most, held, began := 0, giveBackLeast, uint64(0), time.Now() // held back for the question that ends them
	ask := func() error {
		if err := s.nak(ctx, subject(held)); err != nil {
			return err
		}
		switch took := time.Since(began); {
		case took < giveBackFor/2:
			most = min(2*most, giveBackMost)
		case took > giveBackFor:
			most = max(most/2, giveBackLeast)
		}
		to, n, held, began = held, 0, 0, time.Now()
		return nil
	}
	for seq := range list {
		if held > 0 {
			if err := s.relay.nc.Publish(subject(held), []byte("-NAK")); err != nil {
				return to, err
			}
		}
		held = seq
		if n++; n < most {
			continue
		}
		if err := ask(); err != nil {
			return to, err
		}
	}
	if held > 0 {
		err = ask()
	}
	return to, err
}

// nak gives one back and waits for the server, which answers in the order in which it looks at them.
func (s *source) nak(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err := s.relay.nc.RequestWithContext(ctx, subject, []byte("-NAK"))
	return err
}

// missing is what a leased source waits for and has asked for again; of the pull loop only. A NAK may be lost, and a pull of the holder before may have got
// something after it was thrown out: what of that is not asked for again comes after AckWait only.
type missing struct {
	top   uint64 // what was delivered before the check before this one is not on its way any more
	times int
}

// missingTimes is how often what is missing is asked for again, once for each check. Then AckWait brings it.
const missingTimes = 5

// stillMissing is the sequence up to which what is outstanding and not in hand may be given back once more; 0: nothing.
func (s *source) stillMissing() (to uint64) {
	m := &s.missing
	if !s.leased() || !s.gaps.Missing() {
		*m = missing{}
		return 0
	}
	if to = m.top; m.times >= missingTimes {
		to = 0
	} else if to > 0 {
		m.times++
	}
	m.top = s.gaps.Top()
	return min(to, s.gaps.To())
}

// giveBackAgain gives back what is outstanding on the server up to that sequence and not in the hand of this instance.
func (s *source) giveBackAgain(ctx context.Context, info *jetstream.ConsumerInfo, to uint64) {
	from := info.AckFloor.Stream + 1
	to = min(to, info.Delivered.Stream)
	if to < from || to-from >= 4*maxAckPending || !s.mayStart() {
		return
	}
	inHand := s.session.InHand().Unsettled
	_, err := s.giveBack(ctx, info.Delivered.Consumer, func(yield func(uint64) bool) {
		for seq := from; seq <= to; seq++ {
			if _, has := slices.BinarySearch(inHand, seq); !has && !yield(seq) {
				return
			}
		}
	})
	s.log.Info("messages that are missing are given back once more", "outstanding", info.NumAckPending, "in_hand", len(inHand), "error", err)
}

const (
	// noteInHandEvery is the time between two notes: what is delivered meanwhile is what the next holder names one by one.
	noteInHandEvery = time.Second
	// noteInHandFrom is how far the oldest message in hand must be behind for a note.
	noteInHandFrom = maxAckPending / 2
)

// noteInHand notes what is in hand, for the next holder, while the oldest is so far behind that not all since can be named. It begins when all
// was given back that the holder before had: the note of that is valid until then.
func (s *source) noteInHand(ctx context.Context) {
	s.giveBackRest(ctx)
	if s.back.from <= s.back.to {
		select { // it comes after AckWait
		case <-ctx.Done():
			return
		case <-time.After(s.routes[0].cfg.AckWait):
		}
	}
	tick := time.NewTicker(noteInHandEvery)
	defer tick.Stop()
	var noted ack.InHand
	var failed trouble.Seldom
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := s.session.InHand()
		h.To = max(h.To, s.back.to) // what was delivered before came back, or comes
		if !s.mayStart() || len(h.Unsettled) == 0 || h.To-h.Unsettled[0] < noteInHandFrom || h.To == noted.To && slices.Equal(h.Unsettled, noted.Unsettled) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, settleTimeout)
		err := s.records.NoteInHand(call, h)
		cancel()
		if err == nil {
			noted = h
		} else if kept, may := failed.May(time.Now()); may && ctx.Err() == nil {
			s.log.Warn("cannot note which messages are in hand: a takeover may take longer", "error", err, "kept_back", kept)
		}
	}
}

// notePin takes the pin off a delivery.
func (p *pulling) notePin(m *nats.Msg) {
	if m.Header == nil {
		return
	}
	if id := m.Header.Get(pinHeader); id != "" {
		p.pin = id
		if delete(m.Header, pinHeader); len(m.Header) == 0 {
			m.Header = nil
		}
	}
}

// losePin notes that the server does not know the pin of a pull: it has another leader, or somebody else was pinned. While this instance has
// the claim, whoever that is is thrown out, and it pulls anew.
func (s *source) losePin(of string) {
	if of == "" || of != s.pulls.pin {
		return
	}
	s.pulls.pin = ""
	for i := range s.arrivals.Requests.Lanes {
		if l := &s.arrivals.Requests.Lanes[i]; l.Pin == of {
			l.End()
		}
	}
	if s.mayStart() {
		_ = s.relay.nc.PublishRequest(s.relay.api+"CONSUMER.UNPIN."+s.stream+"."+s.durable, s.relay.nc.NewInbox(), []byte(`{"group":"`+provision.PinGroup+`"}`))
	}
}

// lease is how long one lasts.
func (f Fleet) lease() time.Duration { return max(f.Lease, fleet.MinLease) }
