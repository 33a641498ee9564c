package ack

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/inhand"
	"github.com/relaymq/relay/internal/teeth"
)

type state uint8

const (
	live     state = iota // handed out
	acked                 // an ack was sent, or is about to be
	naked                 // a NAK waits for its burst, or was sent
	released              // let go without a settlement
)

// Delivery is one arrival of a message, with its lease. It is settled once, by Ack, Nak, GiveBack or Release.
type Delivery struct {
	Msg        *nats.Msg
	Sequence   uint64    // in the stream
	Time       time.Time // when the stream stored the message
	Deliveries uint64    // by the server's count, which is not a count of attempts
	Consumer   uint64    // the number of this delivery among all of the durable
	Pending    uint64    // messages that the durable had not delivered for the first time

	// InHand counts the delivery while it is alive. It may be set before [Session.ReceiveInto], and is nil otherwise. It is for relay itself.
	InHand *inhand.Count

	s *Session
	// fence is the moment from which another instance may have the message. Written under the session's lock.
	fence atomic.Int64
	// Under the session's lock:
	state      state
	plain      bool   // a NAK without a delay
	unsent     bool   // its settlement has certainly not reached the server
	counted    bool   // among the unconfirmed
	slot       int32  // of its unconfirmed settlement, or where that is otherwise
	reply      string // where its settlement is sent
	due        time.Time
	confirmed  Confirmed // of an ack; may be nil
	twice      bool      // more than one list or slot of the session may hold it
	weight     int       // what InHand has of it
	beat       moment    // the last +WPI, or the arrival; of an ack, when it was sent
	prev, next *Delivery // in the list of leases
	sameBucket *Delivery // of sequences
}

var (
	ackPayload      = []byte("+ACK")
	progressPayload = []byte("+WPI")
	nakPayload      = []byte("-NAK")
)

// Confirmed is told that the server has confirmed an ack: in a call of Session.Reply, with the session's lock held, so it
// must return at once and call nothing of the session.
type Confirmed interface {
	Confirmed()
	// Free comes after Confirmed when the session holds the delivery no more, so that its memory may be used for another one.
	Free()
}

// Ack says that the message is done. It does not wait for the server: then, when not nil, is told once the server has
// confirmed. It returns
// [ErrSettled], and sends nothing, if the delivery was settled before, and [ErrFenced] if the session was abandoned. An
// ack is sent even when the lease may be lost: the message was handled.
func (d *Delivery) Ack(then Confirmed) error {
	s := d.s
	s.mu.Lock()
	if d.state != live {
		s.mu.Unlock()
		return ErrSettled
	}
	s.leases.remove(d)
	if s.abandoned {
		s.release(d)
		s.mu.Unlock()
		return ErrFenced
	}
	d.state, d.confirmed = acked, then
	s.count(d)
	s.stats.Acked++
	if teeth.Acks() {
		s.believe(d)
		return nil
	}
	s.queue(d)
	s.flush()
	return nil
}

// Nak gives the message back and asks for it again when due is over, in this session's next burst. It returns
// [ErrSettled] and sends nothing if the delivery was settled before. It returns [ErrFenced], sends nothing, and ends the
// delivery, if the lease may be lost: the server delivers the message again by itself. A lease that is lost before the
// burst has the same effect.
func (d *Delivery) Nak(due time.Time) error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if err := d.giveUp(); err != nil {
		return err
	}
	d.awaitBurst(due)
	return nil
}

// NakAway is Nak for a message that may be called back before due. What it returns does not refer to the delivery or its message, which can so be
// collected: tens of thousands may be away. The errors are those of Nak.
func (d *Delivery) NakAway(due time.Time) (*Away, error) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if err := d.giveUp(); err != nil {
		return nil, err
	}
	a := &Away{}
	a.d.replace(d)
	a.d.awaitBurst(due)
	return a, nil
}

// GiveBack returns a message that was never started, to be delivered again at once: what a drain does. It leaves with the
// next burst too, lest a +WPI on its way overtakes it. It returns what Nak returns.
func (d *Delivery) GiveBack() error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if err := d.giveUp(); err != nil {
		return err
	}
	d.plain = true
	d.awaitBurst(time.Now())
	return nil
}

// giveUp ends the lease of a delivery that is given back, unless it is over. The lock is held.
func (d *Delivery) giveUp() error {
	s := d.s
	if d.state != live {
		return ErrSettled
	}
	s.leases.remove(d)
	if d.Fenced() {
		// A delivery that stayed live would swallow the one that comes in its place.
		d.state = released
		s.forget(d)
		s.stats.Fenced++
		return ErrFenced
	}
	if d.Deliveries == 1 {
		s.nakedSince++
	}
	return nil
}

// replace has the session keep d, which is new, in the place of a delivery that was given up. The lock is held.
func (d *Delivery) replace(former *Delivery) {
	s := former.s
	s.bySeq.remove(former)
	d.s, d.reply, d.slot, d.Sequence, d.Time = s, former.reply, noSlot, former.Sequence, former.Time
	d.fence.Store(former.fence.Load())
	d.InHand, d.weight, former.weight = former.InHand, former.weight, 0
	s.bySeq.put(d)
	former.state = released
}

// awaitBurst has a delivery that was given up wait for the burst. The lock is held.
func (d *Delivery) awaitBurst(due time.Time) {
	d.state, d.due = naked, due
	d.s.naks = append(d.s.naks, d)
	d.s.delayed = true
}

// Release ends the delivery without a word to the server, which delivers the message again after AckWait.
func (d *Delivery) Release() {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.state == live {
		s.leases.remove(d)
		s.release(d)
	}
}

func (s *Session) release(d *Delivery) {
	d.state = released
	s.forget(d)
	s.stats.Released++
}

// Fenced tells whether the lease may be lost. Nothing should be started, and no dead letter written, for a delivery that
// is; the answer may be outdated a moment later. It takes no lock.
func (d *Delivery) Fenced() bool { return d.fencedAt(d.s.now()) }

// FencedAt is Fenced for who knows the time.
func (d *Delivery) FencedAt(now time.Time) bool { return d.fencedAt(d.s.at(now)) }

func (d *Delivery) fencedAt(now moment) bool { return int64(now) >= d.fence.Load() && !teeth.Fence() }

// believe sends an ack and takes it for confirmed, which the fault harness must notice as a fault. Only builds of the harness call it.
// The caller holds the lock; believe releases it.
func (s *Session) believe(d *Delivery) {
	to := d.reply
	s.forget(d)
	if d.confirmed != nil {
		d.confirmed.Confirmed()
	}
	s.mu.Unlock()
	s.publish(to, "", ackPayload)
}

// sending takes a slot for the NAK of d and returns the reply subject.
func (s *Session) sending(d *Delivery, now moment) string {
	d.slot = s.slots.settles(d, now)
	d.unsent = false
	return s.slots.token(s.prefix, d.slot)
}

// count has d be unconfirmed until it is forgotten.
func (s *Session) count(d *Delivery) {
	if !d.counted {
		d.counted = true
		s.unconfirmed++
	}
}

// nak is the payload of d's NAK at this time.
func (d *Delivery) nak(now time.Time) []byte {
	if d.plain {
		return nakPayload
	}
	// The server takes a delay of zero or less to mean now, and loses a NAK without a delay at a leader change.
	delay := max(d.due.Sub(now), 10*time.Millisecond)
	p := append(make([]byte, 0, 40), `-NAK {"delay":`...)
	return append(strconv.AppendInt(p, int64(delay), 10), '}')
}

// outgoing is something to be sent once the lock is free.
type outgoing struct {
	to, reply string
	payload   []byte
	d         *Delivery // whose NAK it is; nil for a +WPI
}

// burst sends the NAKs that have gathered.
func (s *Session) burst() {
	s.mu.Lock()
	naks := s.naks
	if len(naks) == 0 || s.acks.paused {
		s.mu.Unlock()
		return
	}
	s.naks = nil
	now := time.Now()
	sent := s.at(now)
	out := make([]outgoing, 0, len(naks))
	for _, d := range naks {
		if d.fencedAt(sent) {
			s.stats.Fenced++
			s.forget(d)
			continue
		}
		s.count(d)
		out = append(out, outgoing{d.reply, s.sending(d, sent), d.nak(now), d})
		if !d.plain {
			s.expectQuiet(d)
		}
	}
	s.stats.Naked += uint64(len(out))
	s.settledUp()
	s.mu.Unlock()
	s.post(out)
}

// resendDue sends again what is unconfirmed for too long.
func (s *Session) resendDue(now time.Time) {
	var out []outgoing
	s.mu.Lock()
	before := s.overdue(s.at(now))
	s.requeue(before)
	for s.slots.sentBefore(before) {
		i := s.slots.oldest()
		p := s.slots.table[i]
		d := p.delivery
		switch {
		case !p.settlement:
			s.slots.free(i) // a +WPI: the next one is on its way
		case !s.mayRepeat(d, p.sent, now):
			s.slots.free(i)
			s.stats.Forgotten++
			s.forget(d)
		default:
			s.slots.free(i)
			s.stats.Resent++
			out = append(out, outgoing{d.reply, s.sending(d, s.at(now)), d.nak(now), d})
		}
	}
	s.flush()
	s.post(out)
}

// mayRepeat tells whether a NAK sent then may be sent again. An ack always may, but a NAK whose due is over was perhaps
// taken, and only its answer is lost: then the message may be with another instance already, and a second NAK would have it
// started a third time. It was certainly not taken if it never left, or if something sent later on the same connection
// was answered.
func (s *Session) mayRepeat(d *Delivery, sent moment, now time.Time) bool {
	if s.fenced || d.fencedAt(s.at(now)) {
		return false
	}
	return d.due.After(now) || d.unsent || sent > s.reconnected && s.contact > sent
}
