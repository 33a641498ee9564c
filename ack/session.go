package ack

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Publisher is what a session needs of a connection; *nats.Conn is one. It sends in the order of the calls, and must not
// buffer while disconnected.
type Publisher interface {
	Publish(subject string, data []byte) error
	PublishRequest(subject, reply string, data []byte) error
}

// Identity tells a durable from a later one of the same name.
type Identity struct {
	StreamCreated, ConsumerCreated time.Time
}

// Equal tells whether both are the same durable of the same stream.
func (i Identity) Equal(o Identity) bool {
	return i.StreamCreated.Equal(o.StreamCreated) && i.ConsumerCreated.Equal(o.ConsumerCreated)
}

// Info is what a session asks of the server about its durable, at most once a second.
type Info struct {
	Identity
	AckPending int
}

// Config makes a Session. All fields but Logger are required.
type Config struct {
	// Inbox is the subject under which answers arrive; whoever pulls subscribes to Inbox.>.
	Inbox string
	Conn  Publisher
	// Link is another number after every reconnect, from before anything is sent on the new connection.
	Link     func() uint64
	AckWait  time.Duration
	Identity Identity
	// Info asks the server. It may block until ctx is done. An error leaves everything as it is.
	Info func(ctx context.Context) (Info, error)
	// Logger may be nil.
	Logger *slog.Logger
}

// Session settles the deliveries of one durable. Its methods are safe for concurrent use, but Receive, Reply and Contact
// must be called in the order of the wire.
type Session struct {
	cfg    Config
	prefix string // of reply subjects

	epoch   time.Time     // moments are counted from here
	hurried chan struct{} // a reconnect: do not wait to send again
	woken   chan struct{} // there is something to look after again
	onward  chan struct{} // has acks sent, while the session runs
	quiet   chan struct{} // acks are kept back from now on; see quiet.go

	mu          sync.Mutex
	bySeq       sequences // live, or settled and unconfirmed
	top         uint64    // the highest sequence that was received
	leases      leaseList
	naks        []*Delivery // claimed, waiting for the burst
	lastNak     *Delivery   // of the last burst, while its answer is expected
	nearest     moment      // the shortest time that such an answer took on this connection
	slots       slots
	acks        acks
	unconfirmed int    // settled and sent, or in the outbox
	contact     moment // proof of contact: sent then, and answered
	reconnected moment // what was sent before may have been lost, and so may its answer
	abandoned   bool
	fenced      bool               // see Fence
	resting     bool               // Run waits for woken
	asking      context.CancelFunc // of what is asked of the server just now
	pending     int                // AckPending as the server last said
	delayed     bool               // a NAK was sent since it was asked
	nakedSince  int                // of these, those that cannot be in pending: of first deliveries
	stats       Stats
	settled     chan struct{} // closed when nothing is unconfirmed any more; nil while nobody waits
}

// moment is a time by the monotonic clock, since the session's epoch: a third of the size of a time.Time, of which a
// delivery would hold several.
type moment int64

func (s *Session) at(t time.Time) moment { return moment(t.Sub(s.epoch)) }
func (s *Session) now() moment           { return moment(time.Since(s.epoch)) }

// Stats counts what became of a session's deliveries.
type Stats struct {
	Received  uint64 // deliveries handed out
	Absorbed  uint64 // redeliveries not handed out: acknowledged again, or still being handled here
	Acked     uint64 // acks sent for the first time
	Naked     uint64 // NAKs sent for the first time
	Confirmed uint64 // acks and NAKs the server confirmed
	Resent    uint64 // acks and NAKs sent again
	Forgotten uint64 // acks and NAKs given up unconfirmed: sending them again could settle somebody else's delivery
	Fenced    uint64 // NAKs not sent because the lease may be lost
	Released  uint64 // deliveries let go without a settlement

	Live        int // handed out and not settled
	Unconfirmed int // settled and not confirmed
	AckPending  int // of the durable, on all instances, as the server last said
}

// NewSession makes a session; it does nothing until Run.
func NewSession(cfg Config) *Session {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Session{
		cfg:     cfg,
		prefix:  cfg.Inbox + ".a.",
		epoch:   time.Now(),
		hurried: make(chan struct{}, 1),
		woken:   make(chan struct{}, 1),
		quiet:   make(chan struct{}, 1),
		onward:  make(chan struct{}, 1),
		bySeq:   newSequences(),
		slots:   newSlots(),
		acks:    acks{waiting: noSlot, link: cfg.Link()},
		nearest: math.MaxInt64,
	}
}

// Stats is a snapshot.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Live, st.Unconfirmed, st.AckPending = s.leases.n, s.unconfirmed+len(s.naks), s.pending
	return st
}

// Contact proves that the link worked at the time sent: an answer to something sent then has arrived, before any message
// that Receive is given from now on.
func (s *Session) Contact(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contact = max(s.contact, s.at(sent))
}

// Reconnected says that the connection is a new one. What was sent on the old one and is unconfirmed is sent again as
// soon as the server has told that stream and durable are the same.
func (s *Session) Reconnected() {
	s.mu.Lock()
	s.reconnected, s.nearest = s.now(), math.MaxInt64
	if s.asking != nil {
		s.asking() // its answer may be lost
	}
	s.mu.Unlock()
	select {
	case s.hurried <- struct{}{}:
	default:
	}
}

// LeaderChanged says that another server leads the durable now. Acks that the former leader had not taken from its queue
// are lost (nats-server consumer.go, setLeader), with nothing that tells; what is unconfirmed is sent again.
func (s *Session) LeaderChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.distrust()
}

// Pause keeps back all settlements until Resume: the durable may be another one of the same name, and what is settled there would be a different message with
// the same sequence. Leases are extended meanwhile. Settlements that are still kept back when Run returns are lost.
func (s *Session) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acks.paused = true
}

// Resume sends what was kept back, unless the session was abandoned.
func (s *Session) Resume() {
	s.mu.Lock()
	s.acks.paused = false
	s.flush()
}

// Abandon ends the session: stream or durable were deleted or made anew, and whatever is still to be sent would settle a
// different message that has the same sequence now. Deliveries that are live can no longer be settled.
func (s *Session) Abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abandoned {
		return
	}
	s.abandoned = true
	for d := s.leases.first; d != nil; d = d.next {
		d.fence.Store(0)
	}
	s.stats.Released += uint64(len(s.naks))
	s.naks = nil
	for i := s.slots.oldest(); i != 0; i = s.slots.oldest() {
		s.slots.free(i)
	}
	s.acks = acks{waiting: noSlot, sending: s.acks.sending, runs: s.acks.runs, link: s.acks.link}
	for _, d := range s.bySeq.all() {
		if d.state != live {
			if d.counted {
				s.stats.Forgotten++
			}
			s.forget(d)
		}
	}
	s.settledUp()
}

// Fence says that others may have all deliveries from now on: nothing is sent for them any more but acks of what was handled.
func (s *Session) Fence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fenced = true
	for d := s.leases.first; d != nil; d = d.next {
		d.fence.Store(0)
	}
	for _, d := range s.naks {
		d.fence.Store(0) // the next burst drops it
	}
}

// Receive begins the lease of an arrived message. It returns nil without an error when the message needs no handling:
// it was handled and only its ack is unconfirmed (it is acked again), it is still being handled here (its lease is
// renewed), or the session was abandoned. An error says that the message did not come from a consumer.
func (s *Session) Receive(m *nats.Msg) (*Delivery, error) { return s.ReceiveInto(new(Delivery), m) }

// ReceiveInto is Receive with the memory for the delivery, which must be zero, but for its InHand, and must not be moved.
func (s *Session) ReceiveInto(d *Delivery, m *nats.Msg) (*Delivery, error) {
	a, err := parseReply(m.Reply)
	if err != nil {
		return nil, err
	}
	d.s, d.reply, d.slot, d.Msg = s, m.Reply, noSlot, m
	d.Sequence, d.Deliveries, d.Consumer, d.Time, d.Pending = a.sequence, a.deliveries, a.consumer, a.time, a.pending
	s.mu.Lock()
	if s.abandoned {
		s.mu.Unlock()
		return nil, nil
	}
	if old := s.bySeq.get(d.Sequence); old != nil {
		switch {
		case !old.Time.Equal(d.Time):
			// The stream was made anew: this is another message, which what is known of the old one must not touch.
			s.disown(old)
		case old.state == live:
			// Our lease ran out while we were at it, and the server gave it to us again: the handler runs on, under
			// the new lease.
			old.reply = m.Reply
			s.leases.remove(old)
			s.lease(old)
			s.stats.Absorbed++
			s.mu.Unlock()
			return nil, nil
		case old.state == acked:
			old.reply = m.Reply
			s.stats.Absorbed++
			s.stats.Resent++
			old.twice = true
			s.queue(old)
			s.flush()
			return nil, nil
		default: // a NAK whose confirmation is not here yet: this is the retry it asked for
			s.disown(old)
		}
	}
	s.rouse()
	s.bySeq.put(d)
	s.top = max(s.top, d.Sequence)
	s.lease(d)
	d.enter(m.Size())
	s.stats.Received++
	s.mu.Unlock()
	return d, nil
}

// disown ends a delivery whose sequence is another's now: nothing is sent for it any more.
func (s *Session) disown(d *Delivery) {
	switch {
	case d.state == live:
		s.leases.remove(d)
		d.state = released
		d.fence.Store(0)
		s.stats.Released++
	case d.state == acked:
		s.stats.Forgotten++
	case d.slot == noSlot: // a NAK that waits for its burst, and would take the message away that has just come
		s.naks = slices.DeleteFunc(s.naks, func(o *Delivery) bool { return o == d })
		s.stats.Released++
	default:
		s.slots.free(d.slot)
		s.stats.Forgotten++
	}
	s.forget(d)
}

// Reply takes a message of the inbox that is not a delivery, and reports whether it was an answer to a settlement.
func (s *Session) Reply(m *nats.Msg) bool {
	token, ok := strings.CutPrefix(m.Subject, s.prefix)
	if !ok {
		return false
	}
	s.mu.Lock()
	i := s.slots.find(token)
	waiting := i != noSlot && i == s.acks.waiting
	s.mu.Unlock()
	var link uint64
	if waiting {
		// Not under the lock: this asks the connection, which may be held by somebody who writes to a link that is stuck.
		link = s.cfg.Link()
	}
	s.mu.Lock()
	i = s.slots.find(token)
	if i != noSlot { // else an answer to what was sent again, or was forgotten
		s.answered(i, m, link)
	}
	hurry := s.settled != nil
	s.mu.Unlock()
	if hurry {
		s.closeUp()
	}
	return true
}

// answered takes the answer to what is in the slot. Link is that of now, if it is the ack that waits.
func (s *Session) answered(i int32, m *nats.Msg, link uint64) {
	p := &s.slots.table[i]
	d := p.delivery
	if m.Header != nil && m.Header.Get("Status") == "503" {
		// No responders: nobody leads the consumer just now. It is sent again.
		if i == s.acks.waiting {
			s.distrust()
		} else {
			d.unsent = d.unsent || p.settlement
		}
		return
	}
	s.contact = max(s.contact, p.sent)
	switch {
	case i == s.acks.waiting:
		// Without a reconnect that flush has not noticed yet, it confirms all that it covers.
		sure := link == s.acks.link
		s.uncover(func(c *Delivery) {
			if sure || c == d {
				s.confirm(c)
			} else {
				s.doubt(c)
			}
		})
	case p.settlement:
		s.slots.free(i)
		s.mayBeQuiet(d, p.sent)
		s.confirm(d)
	default:
		s.slots.free(i)
		s.extended(d, p.sent)
	}
}

func (s *Session) confirm(d *Delivery) {
	s.stats.Confirmed++
	s.forget(d)
	if d.confirmed != nil {
		d.confirmed.Confirmed()
		if !d.twice {
			d.confirmed.Free()
		}
	}
}

// forget ends a settled delivery.
func (s *Session) forget(d *Delivery) {
	s.bySeq.remove(d)
	d.leave()
	d.slot = noSlot
	if d.counted {
		d.counted = false
		s.unconfirmed--
	}
	s.settledUp()
}

// settledUp wakes those who wait for that.
func (s *Session) settledUp() {
	if s.settled != nil && s.unconfirmed == 0 && len(s.naks) == 0 {
		close(s.settled)
		s.settled = nil
	}
}

// Wait blocks until no settlement is unconfirmed, or ctx is done.
func (s *Session) Wait(ctx context.Context) error {
	s.mu.Lock()
	if s.unconfirmed == 0 && len(s.naks) == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.settled == nil {
		s.settled = make(chan struct{})
	}
	done := s.settled
	s.mu.Unlock()
	s.closeUp()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// publish returns false when the message has certainly not left.
func (s *Session) publish(subject, reply string, payload []byte) bool {
	var err error
	if reply == "" {
		err = s.cfg.Conn.Publish(subject, payload)
	} else {
		err = s.cfg.Conn.PublishRequest(subject, reply, payload)
	}
	if err != nil {
		s.cfg.Logger.Debug("settlement not sent; it is sent again", "error", err)
	}
	return err == nil
}

// post sends what was gathered under the lock.
func (s *Session) post(out []outgoing) {
	for _, o := range out {
		if !s.publish(o.to, o.reply, o.payload) && o.d != nil {
			s.mu.Lock()
			o.d.unsent = true
			s.mu.Unlock()
		}
	}
}
