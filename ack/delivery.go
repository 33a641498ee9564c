package ack

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
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
	Received   time.Time // by the local clock

	s *Session
	// Under the session's lock:
	state      state
	reply      string // where its settlement is sent
	slot       int32  // of its unconfirmed settlement
	due        time.Time
	plain      bool   // a NAK without a delay
	confirmed  func() // of an ack
	leaseStart time.Time
	beat       time.Time // the last +WPI, or the arrival
	prev, next *Delivery // in the list of leases
}

var (
	ackPayload      = []byte("+ACK")
	progressPayload = []byte("+WPI")
	nakPayload      = []byte("-NAK")
)

// Ack says that the message is done. It does not wait for the server: then, when not nil, is called once the server has
// confirmed, with the session's lock held, so it must return at once and call nothing of the session. It returns
// [ErrSettled], and sends nothing, if the delivery was settled before.
func (d *Delivery) Ack(then func()) error {
	s := d.s
	s.mu.Lock()
	if d.state != live {
		s.mu.Unlock()
		return ErrSettled
	}
	d.state, d.confirmed = acked, then
	s.leases.remove(d)
	to, reply := d.reply, s.sending(d, time.Now())
	s.stats.Acked++
	s.mu.Unlock()
	s.publish(to, reply, ackPayload)
	return nil
}

// Nak gives the message back and asks for it again when due is over, in this session's next burst. It returns
// [ErrSettled] or [ErrFenced] and sends nothing if that is so.
func (d *Delivery) Nak(due time.Time) error {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.state != live {
		return ErrSettled
	}
	if s.fenced(d) {
		return ErrFenced
	}
	d.state, d.due = naked, due
	s.leases.remove(d)
	s.naks = append(s.naks, d)
	s.delayed = true
	return nil
}

// GiveBack returns a message that was never started, to be delivered again at once: what a drain does. It does not wait
// for the burst. It returns [ErrSettled] or [ErrFenced] and sends nothing if that is so.
func (d *Delivery) GiveBack() error {
	s := d.s
	s.mu.Lock()
	if d.state != live {
		s.mu.Unlock()
		return ErrSettled
	}
	if s.fenced(d) {
		s.mu.Unlock()
		return ErrFenced
	}
	d.state, d.plain = naked, true
	s.leases.remove(d)
	to, reply := d.reply, s.sending(d, time.Now())
	s.stats.Naked++
	s.mu.Unlock()
	s.publish(to, reply, nakPayload)
	return nil
}

// Release ends the delivery without a word to the server, which delivers the message again after AckWait.
func (d *Delivery) Release() {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.state != live {
		return
	}
	d.state = released
	s.leases.remove(d)
	s.forget(d)
	s.stats.Released++
}

// Fenced tells whether the lease may be lost. Nothing should be started, and no dead letter written, for a delivery that
// is; the answer may be outdated a moment later.
func (d *Delivery) Fenced() bool {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced(d)
}

func (s *Session) fenced(d *Delivery) bool {
	if time.Since(d.leaseStart) < s.cfg.AckWait {
		return false
	}
	s.stats.Fenced++
	return true
}

// sending takes a slot for the settlement of d and returns the reply subject.
func (s *Session) sending(d *Delivery, now time.Time) string {
	var token string
	d.slot, token = s.slots.use(d, true, now)
	return s.prefix + token
}

// resend is sending once more.
func (s *Session) resend(d *Delivery, now time.Time) string {
	s.slots.free(d.slot)
	s.stats.Resent++
	return s.sending(d, now)
}

// payload is what settles d at this time.
func (d *Delivery) payload(now time.Time) []byte {
	switch {
	case d.state == acked:
		return ackPayload
	case d.plain:
		return nakPayload
	}
	// The server takes a delay of zero or less to mean now, and loses a NAK without a delay at a leader change.
	delay := max(d.due.Sub(now), 10*time.Millisecond)
	p := append(make([]byte, 0, 40), `-NAK {"delay":`...)
	return append(strconv.AppendInt(p, int64(delay), 10), '}')
}

type outgoing struct {
	to, reply string
	payload   []byte
}

// burst sends the NAKs that have gathered.
func (s *Session) burst(now time.Time) {
	s.mu.Lock()
	if len(s.naks) == 0 {
		s.mu.Unlock()
		return
	}
	out := make([]outgoing, 0, len(s.naks))
	for _, d := range s.naks {
		out = append(out, outgoing{d.reply, s.sending(d, now), d.payload(now)})
	}
	s.stats.Naked += uint64(len(s.naks))
	clear(s.naks)
	s.naks = s.naks[:0]
	s.mu.Unlock()
	for _, o := range out {
		s.publish(o.to, o.reply, o.payload)
	}
}

// resendDue sends again what is unconfirmed for too long; what belongs to an earlier stream or durable is forgotten, and
// so is a NAK whose lease is over: the server delivers the message again by itself.
func (s *Session) resendDue(now time.Time, current Identity) {
	before := now.Add(-resendAfter)
	var out []outgoing
	s.mu.Lock()
	for s.slots.dueBefore(before) {
		i := s.slots.oldest()
		p := &s.slots.table[i]
		d := p.delivery
		switch {
		case !p.settlement:
			s.slots.free(i) // a +WPI: the next one is on its way
		case current != s.cfg.Identity:
			s.slots.free(i)
			s.stats.Forgotten++
			s.forget(d)
		case d.state == naked && now.Sub(d.leaseStart) >= s.cfg.AckWait:
			s.slots.free(i)
			s.stats.Fenced++
			s.forget(d)
		default:
			out = append(out, outgoing{d.reply, s.resend(d, now), d.payload(now)})
		}
	}
	s.mu.Unlock()
	for _, o := range out {
		s.publish(o.to, o.reply, o.payload)
	}
}
