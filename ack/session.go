package ack

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Publisher is what a session needs of a connection; *nats.Conn is one. It must not buffer while disconnected.
type Publisher interface {
	PublishRequest(subject, reply string, data []byte) error
}

// Identity tells a durable from a later one of the same name.
type Identity struct {
	StreamCreated, ConsumerCreated time.Time
}

// Info is what a session asks of the server about its durable, at most once a second.
type Info struct {
	Identity
	AckPending int
}

// Config makes a Session. All fields but Logger are required.
type Config struct {
	// Inbox is the subject under which answers arrive; whoever pulls subscribes to Inbox.>.
	Inbox    string
	Conn     Publisher
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

	mu      sync.Mutex
	bySeq   map[uint64]*Delivery // live, or settled and unconfirmed
	leases  leaseList
	naks    []*Delivery // claimed, waiting for the burst
	slots   slots
	contact time.Time // proof of contact: sent then, and answered
	delayed bool      // a NAK was sent since AckPending was asked
	pending int       // AckPending as the server last said
	stats   Stats
	settled chan struct{} // closed and replaced when nothing is unconfirmed any more; nil while nobody waits
}

// Stats counts what became of a session's deliveries.
type Stats struct {
	Received  uint64 // deliveries handed out
	Absorbed  uint64 // redeliveries not handed out: acknowledged again, or still being handled here
	Acked     uint64 // acks sent for the first time
	Naked     uint64 // NAKs sent for the first time
	Confirmed uint64 // acks and NAKs the server confirmed
	Resent    uint64 // acks and NAKs sent again
	Forgotten uint64 // acks and NAKs given up because stream or durable were made anew
	Fenced    uint64 // settlements refused because the lease may be lost
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
		bySeq:   make(map[uint64]*Delivery),
		slots:   newSlots(),
		contact: time.Now(),
	}
}

// Stats is a snapshot.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Live, st.Unconfirmed, st.AckPending = s.leases.n, s.slots.settlements+len(s.naks), s.pending
	return st
}

// Contact proves that the link worked at the time sent: an answer to something sent then has arrived, before any message
// that Receive is given from now on.
func (s *Session) Contact(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proveContact(sent)
}

func (s *Session) proveContact(sent time.Time) {
	if sent.After(s.contact) {
		s.contact = sent
	}
}

// Receive begins the lease of an arrived message. It returns nil without an error when the message needs no handling:
// it was handled and only its ack is unconfirmed (it is acked again), or it is still being handled here (its lease is
// renewed). An error says that the message did not come from a consumer.
func (s *Session) Receive(m *nats.Msg) (*Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	seq := meta.Sequence.Stream

	s.mu.Lock()
	if old := s.bySeq[seq]; old != nil {
		switch old.state {
		case live:
			// Our lease ran out while we were at it, and the server gave it to us again: the handler runs on, under
			// the new lease.
			old.reply, old.Deliveries = m.Reply, meta.NumDelivered
			s.leases.renew(old, s.contact)
			s.stats.Absorbed++
			s.mu.Unlock()
			return nil, nil
		case acked:
			old.reply = m.Reply
			reply := s.resend(old, time.Now())
			s.stats.Absorbed++
			s.mu.Unlock()
			s.publish(m.Reply, reply, ackPayload)
			return nil, nil
		default: // a NAK whose confirmation is not here yet: this is the retry it asked for
			s.slots.free(old.slot)
			s.forget(old)
		}
	}
	d := &Delivery{
		s: s, reply: m.Reply, slot: noSlot,
		Msg: m, Sequence: seq, Deliveries: meta.NumDelivered, Time: meta.Timestamp, Received: time.Now(),
	}
	s.bySeq[seq] = d
	s.leases.add(d, s.contact)
	s.stats.Received++
	s.mu.Unlock()
	return d, nil
}

// Reply takes a message of the inbox that is not a delivery, and reports whether it was an answer to a settlement.
func (s *Session) Reply(m *nats.Msg) bool {
	token, ok := strings.CutPrefix(m.Subject, s.prefix)
	if !ok {
		return false
	}
	if m.Header.Get("Status") == "503" {
		return true // no responders: nobody leads the consumer just now; it is sent again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, d := s.slots.take(token)
	if p == nil {
		return true // an answer to what was sent again, or was forgotten
	}
	s.proveContact(p.sent)
	if !p.settlement {
		s.leases.confirmed(d, p.sent)
		return true
	}
	s.stats.Confirmed++
	s.forget(d)
	if d.confirmed != nil {
		d.confirmed()
	}
	return true
}

// forget ends a settled delivery.
func (s *Session) forget(d *Delivery) {
	if s.bySeq[d.Sequence] == d {
		delete(s.bySeq, d.Sequence)
	}
	d.slot = noSlot
	if s.settled != nil && s.slots.settlements == 0 && len(s.naks) == 0 {
		close(s.settled)
		s.settled = nil
	}
}

// Wait blocks until no settlement is unconfirmed, or ctx is done.
func (s *Session) Wait(ctx context.Context) error {
	s.mu.Lock()
	if s.slots.settlements == 0 && len(s.naks) == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.settled == nil {
		s.settled = make(chan struct{})
	}
	done := s.settled
	s.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) publish(subject, reply string, payload []byte) {
	if err := s.cfg.Conn.PublishRequest(subject, reply, payload); err != nil {
		s.cfg.Logger.Debug("settlement not sent; it is sent again", "error", err)
	}
}

// How often a session looks after its deliveries, and when it sends a settlement again.
const (
	burstEvery  = 100 * time.Millisecond
	resendAfter = 2 * time.Second
	infoEvery   = time.Second
)

// Run sends the NAKs, extends the leases and sends again what stays unconfirmed, until ctx is done. It sends a last burst
// before it returns.
func (s *Session) Run(ctx context.Context) {
	var inspection sync.WaitGroup
	inspection.Go(func() { s.inspect(ctx) })
	defer inspection.Wait()
	tick := time.NewTicker(burstEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.burst(time.Now())
			return
		case <-tick.C:
			now := time.Now()
			s.burst(now)
			s.extend(now)
		}
	}
}

// inspect asks the server about the durable, once a second, while there is a reason to.
func (s *Session) inspect(ctx context.Context) {
	tick := time.NewTicker(infoEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		due := s.slots.dueBefore(time.Now().Add(-resendAfter))
		wanted := due || s.delayed || s.pending > 0
		s.delayed = false
		s.mu.Unlock()
		if !wanted {
			continue
		}
		info, err := s.cfg.Info(ctx)
		if err != nil {
			continue // not now: nothing is sent again on a guess
		}
		s.mu.Lock()
		s.pending = info.AckPending
		s.mu.Unlock()
		if due {
			s.resendDue(time.Now(), info.Identity)
		}
	}
}

// AckPending is how many deliveries of the durable wait for their settlement, delayed NAKs included, on all instances,
// as the server said within about a second.
func (s *Session) AckPending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}
