package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// batch gathers messages by route.
type batch struct {
	routes   []*route
	messages [][]*supervisor.Message
}

func (b *batch) add(m *message) {
	for i, rt := range b.routes {
		if rt == m.route {
			b.messages[i] = append(b.messages[i], &m.Message)
			return
		}
	}
	b.routes = append(b.routes, m.route)
	b.messages = append(b.messages, []*supervisor.Message{&m.Message})
}

// deliver hands the messages to their routes, and empties the batch, whose memory is used again.
func (b *batch) deliver() {
	for i, rt := range b.routes {
		if len(b.messages[i]) > 0 {
			rt.group.Deliver(b.messages[i]...)
		}
		clear(b.messages[i])
		b.messages[i] = b.messages[i][:0]
	}
}

const (
	// noBodyDelay is how long a message stays away whose body is gone.
	noBodyDelay = 15 * time.Minute
	// bodylessDelay is how long a message stays away that came without its body and is not for a handler here.
	bodylessDelay = time.Second
)

// admit begins the lease of a delivery and finds out what is known of it. What needs the server for that comes to its
// route a little later; the rest is added to the batch.
func (s *source) admit(raw *nats.Msg, now time.Time, b *batch) {
	m := s.spares.take(s, raw)
	if m.on(s.routeFor(raw.Subject)); m.route != nil {
		m.arrival.Ledger = m.route.memory.Ledger
	}
	d, err := s.Session.ReceiveInto(&m.arrival, raw)
	if err != nil {
		s.log.Error("a message arrived that is not a JetStream delivery; it is ignored", "error", err)
		return
	}
	if d == nil && s.Health.IsLost() {
		s.giveBack(raw)
		return
	}
	if s.suspect.Delivered(raw, m.arrival.Consumer) {
		if d != nil {
			d.Release()
		}
		return
	}
	place := catchup.Outside
	if !s.due {
		place = s.catchUp.Place(m.arrival.Sequence, m.arrival.Time, raw.Subject)
	}
	s.tallied(m.route, &m.arrival, raw.Subject, place)
	if s.gaps.Delivered(m.arrival.Sequence, m.arrival.Consumer, m.arrival.Deliveries, now) {
		defer func() {
			b.deliver()
			s.gaps.Hold(now)
		}()
	}
	s.pulls.Waits(m.arrival.Pending > 0 || m.arrival.Deliveries > 1)
	if d == nil {
		return
	}
	s.count.Delivered.Add(1)
	m.Delivery = d
	if d.FencedAt(now) {
		// It comes from a link that stalled for longer than AckWait: another instance has it by now.
		m.on(s.routeOf(raw.Subject))
		m.letGo()
		s.cameLate(now)
		return
	}
	s.late.End()
	if place != catchup.Outside {
		m.passed(place)
		return
	}
	if m.bodyless = isBodyless(raw); m.bodyless {
		s.watchdog.Doubt()
	}
	if s.due {
		origin, header, err := retry.Unwrap(raw.Header)
		if err != nil && m.bodyless {
			m.returnBodyless()
			return
		}
		if errors.Is(err, retry.ErrOtherVersion) {
			m.Newer(err)
			return
		}
		if err != nil {
			m.foreign(err)
			return
		}
		if origin.Stream != s.origin {
			m.stray(&origin)
			return
		}
		if !dlq.BodyElsewhere(raw.Header) && s.othersWant(origin) {
			origin.Route = retry.NoRoute
			m.stray(&origin)
			return
		}
		m.Origin, m.Subject, m.Header = &origin, origin.Subject, header
		if p := m.route.cfg.part; p != nil && !m.bodyless {
			m.toPartition(p)
			return
		} else if p != nil {
			m.returnBodyless()
			return
		}
	} else if m.route == nil {
		m.stray(nil)
		return
	} else if p := m.route.cfg.part; p != nil && !m.ofPartition(p) {
		return
	}
	elsewhere := m.bodyless || (s.due || m.moved) && dlq.BodyElsewhere(raw.Header)
	rec, known := retry.Record{}, true
	if d.Deliveries > 1 {
		rec, known = s.Records.Cached(d.Sequence, d.Deliveries)
	}
	known = known && !elsewhere
	switch ordered := m.route.cfg.Order == supervisor.OrderKey; {
	case known && (!ordered || s.ordered.behind.Load() == 0):
		m.known(rec, b)
	case ordered:
		// The messages after it must not overtake it, nor it those before it. The loop does not wait for it: answers to
		// settlements and leases come this way too.
		b.deliver()
		s.ordered.behind.Add(1)
		enter := func() { m.lookUp(elsewhere) }
		if known {
			rec := rec // the other one must not escape
			enter = func() { m.enter(rec) }
		} else if !elsewhere { // a body has to wait for its memory, in order
			m.ahead = make(chan answer, 1)
			s.ordered.aheads.Go(func() {
				rec, err := m.ask(m.route.path.Work, false, now)
				m.ahead <- answer{rec, err}
			})
		}
		s.ordered.inOrder.Go(func() {
			enter()
			if s.ordered.behind.Add(-1) == maxBehind/2 {
				s.pulls.Wake()
			}
		})
	default:
		m.route.looks.Go(func() { m.lookUp(elsewhere) })
	}
}

// giveBack gives back what another durable of the same name sent for a pull of this one. If the message is of neither, this settles nothing.
func (s *source) giveBack(raw *nats.Msg) { _ = s.relay.nc.Publish(raw.Reply, []byte("-NAK")) }

// enter is known for a message that comes alone.
func (m *message) enter(rec retry.Record) {
	var b batch
	m.known(rec, &b)
	b.deliver()
}

// asksAhead is how many messages are asked about at once that enter one after the other.
const asksAhead = 64

// answer is what is known of a message.
type answer struct {
	rec retry.Record
	err error
}

// maxBehind is with how many messages of ordered keys that wait for what is asked first no more are pulled: they are not in
// the window, which bounds all others.
const maxBehind = 256

// lookUp asks the server for what is not known of the message. It blocks for as long as the server does not tell, but not
// longer than a drain.
func (m *message) lookUp(elsewhere bool) {
	ctx, began := m.route.path.Work, time.Now()
	var damaged *retry.HeaderError
	for {
		var rec retry.Record
		var err error
		if m.ahead != nil {
			a := <-m.ahead
			rec, err, m.ahead = a.rec, a.err, nil
		} else {
			rec, err = m.ask(ctx, elsewhere, began)
		}
		switch {
		case err == nil:
			m.enter(rec)
			return
		case m.Delivery.Fenced() || ctx.Err() != nil:
			m.letGo()
			return
		case m.bodyless && errors.Is(err, jetstream.ErrMsgNotFound):
			// The server takes a message that is gone off the durable. If a replica was asked that lags behind, the message comes
			// again.
			m.route.count.Settled[supervisor.LetGo].Add(1)
			if others, ok := m.route.said.unread.May(time.Now()); ok {
				m.route.log.Warn("the message arrived without its body, and its stream does not have it any more: it cannot be handled", m.Attrs("others", others)...)
			}
			m.letGo()
			return
		case errors.As(err, &damaged):
			// As it is: what its other headers say is no help without a body.
			m.Origin, m.Subject, m.Header = nil, m.Delivery.Msg.Subject, m.Delivery.Msg.Header
			m.foreign(err)
			return
		case m.source.pulls.IsDraining():
			m.UnlessBounded(func() bool { return m.ParkUnread(elsewhere) }, func() {
				_ = m.Delivery.GiveBack() // fenced: somebody else has it
			})
			return
		}
		if errors.Is(err, retry.ErrOtherVersion) {
			m.Newer(err)
			return
		}
		if others, ok := m.route.said.unread.May(time.Now()); ok {
			m.route.log.Warn("cannot read the attempts or the body of a message; the message waits", m.Attrs("others", others, "error", err)...)
		}
		if errors.Is(err, dlq.ErrNoBody) {
			m.UnlessBounded(func() bool { return false }, func() { _ = m.Delivery.Nak(time.Now().Add(noBodyDelay)) })
			return
		}
		away.Pause(ctx, time.Second)
	}
}

func (m *message) ask(ctx context.Context, elsewhere bool, began time.Time) (retry.Record, error) {
	if elsewhere {
		// As long as Store.Body may take; the lease is extended meanwhile.
		if err := m.reserve(ctx); err != nil {
			return retry.Record{}, err
		}
		body, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		header, data, err := m.body(body)
		if err != nil {
			return retry.Record{}, err
		}
		m.Header, m.Data = header, data
	}
	if m.Delivery.Deliveries <= 1 {
		return retry.Record{}, nil
	}
	read, cancel := context.WithTimeout(ctx, askTimeout)
	rec, err := m.source.Records.Get(read, m.Delivery.Sequence, m.Delivery.Deliveries)
	cancel()
	if err != nil {
		return rec, err
	}
	return m.Judge(ctx, rec, began)
}

// known completes the message and adds it to the batch.
func (m *message) known(rec retry.Record, b *batch) {
	d, rt := m.Delivery, m.route
	m.Recorded, m.Doubtful = rec.Known(), d.Deliveries > 1 && !rec.Explains(d.Deliveries)
	before := retry.Origin{} // of a message that was parked
	if m.Origin != nil {
		before = *m.Origin
	}
	attempts, first, due := max(rec.Attempts, before.Attempts), rec.FirstFailure, rec.Due
	if t := before.FirstFailure; first.IsZero() || !t.IsZero() && t.Before(first) {
		first = t
	}
	if !m.Recorded {
		due = before.Due
	}
	if rt.handsOver() {
		m.due, due = due, time.Time{}
	}
	m.first = new(handed)
	m.Message = supervisor.Message{
		First: &m.first.attempt,
		Work:  m, Key: rt.keyOf(m.Subject), Sequence: d.Sequence, Replayed: m.source.due, Size: len(m.Data) + d.Msg.Size() - len(d.Msg.Data),
		Attempts: attempts, FirstFailure: first, Due: due,
		Returns: before.Returns + max(0, int(min(d.Deliveries, 1<<20))-1-(attempts-before.Attempts)),
	}
	if rec.LastError != "" {
		m.LastErr = errors.New(rec.LastError)
	}
	if rt.guarded && !rt.handsOver() && (rec.Suspect || rec.Crashes > 0) {
		m.Suspect, m.Alone = suspects.New(rec, m.source.Records, d.Sequence, d.Deliveries), true
	}
	if rec.Dead == "" && rec.Crashes >= rt.now().Retry.MaxCrashes {
		rec.Dead = supervisor.ReasonCrash
		attempts += rec.Crashes // each was a start
	}
	if m.Header != nil && !rt.handsOver() {
		stored := d.Time
		if m.Origin != nil {
			stored = m.Origin.Time
		}
		m.readCall(stored)
		m.Asks = m.call != nil && m.call.AsksFirst()
	}
	if rec.Dead != "" {
		// It had its verdict; only its entry could not be stored.
		rt.group.Ended(m.Key, m.Sequence)
		rt.count.Settled[supervisor.DeadLetter].Add(1)
		o := supervisor.Outcome{Action: supervisor.DeadLetter, Reason: rec.Dead, Attempts: attempts, FirstFailure: first}
		m.ToLetters(o)
		return
	}
	if m.call != nil && m.call.IsOver(time.Now()) {
		rt.group.Ended(m.Key, m.Sequence)
		m.call.Expire()
		m.Settle(supervisor.Outcome{Action: supervisor.LetGo, Attempts: attempts, FirstFailure: first})
		return
	}
	b.add(m)
}

// returnBodyless gives a message back that came without its body and is not for a handler here. It must not be stored
// elsewhere, for it would be stored empty.
func (m *message) returnBodyless() {
	if m.route == nil {
		m.on(m.source.routes[0]) // which holds it, if it must be held
	}
	m.UnlessBounded(func() bool { return false }, func() {
		_ = m.Delivery.Nak(time.Now().Add(bodylessDelay)) // fenced: somebody else has it
	})
}

// foreign settles a message on the retry stream that relay did not write: it goes to the dead letters as it is.
func (m *message) foreign(err error) {
	m.route.log.Error("a message on the retry stream was not written by relay; it becomes a dead letter", "subject", m.Subject, "error", err)
	if m.Delivery.Deliveries == 1 {
		m.route.count.tally.FromNowhere(m.Delivery.Msg.Subject)
	}
	o := supervisor.Outcome{Action: supervisor.DeadLetter, Reason: supervisor.ReasonDead, Err: err, Attempts: 0}
	m.ToLetters(o)
}

// letGo releases a delivery that is of no use. Its message comes again, unless its durable is gone, and ordered keys wait for it.
func (m *message) letGo() {
	m.Delivery.Release()
	if m.route != nil && !m.source.due && !m.source.isLost() && m.route.cfg.Order == supervisor.OrderKey {
		m.route.group.Expect(m.route.keyOf(m.Subject), m.Delivery.Sequence)
	}
}

// cameLate notes a message that arrived after its AckWait.
func (s *source) cameLate(now time.Time) {
	s.count.Late.Add(1)
	s.late.Came(s.relay.cfg.Stalled, now)
	if others, ok := s.lateSaid.May(now); ok {
		s.log.Warn("a message arrived after its ack wait and is not started; it is redelivered. If this continues, the link to the server is too "+
			"slow: make ack_wait longer", "others", others)
	}
}
