package consumer

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/suspects"
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

// admit begins the lease of a delivery and finds out what is known of it. What needs the server for that comes to its
// route a little later; the rest is added to the batch.
func (l *loop) admit(raw *nats.Msg, now time.Time, b *batch) {
	m := l.spares.take(l.source, raw)
	if m.on(l.routeFor(raw.Subject)); m.route != nil {
		m.arrival.Ledger = m.route.memory.Ledger
	}
	d, err := l.Session.ReceiveInto(&m.arrival, raw)
	if err != nil {
		l.log.Error("a message arrived that is not a JetStream delivery; it is ignored", "error", err)
		return
	}
	if d == nil && l.Health.IsLost() {
		l.giveBack(raw)
		return
	}
	if l.suspect.Delivered(raw, m.arrival.Consumer) {
		if d != nil {
			d.Release()
		}
		return
	}
	place := catchup.Outside
	if !l.due {
		place = l.catchUp.Place(m.arrival.Sequence, m.arrival.Time, raw.Subject)
	}
	l.tallied(m.route, &m.arrival, raw.Subject, place)
	if l.ordered.gaps.Delivered(m.arrival.Sequence, m.arrival.Consumer, m.arrival.Deliveries, now) {
		defer func() {
			b.deliver()
			l.ordered.gaps.Hold(now)
		}()
	}
	l.pulls.Told(&m.arrival)
	if d == nil {
		return
	}
	l.count.Delivered.Add(1)
	m.Delivery = d
	if d.FencedAt(now) {
		// It comes from a link that stalled for longer than AckWait: another instance has it by now.
		m.on(l.routeOf(raw.Subject))
		m.letGo()
		l.count.Late.Add(1)
		l.late.Came(l.log, l.relay.cfg.Stalled, now)
		return
	}
	l.late.End()
	if place != catchup.Outside {
		m.passed(place)
		return
	}
	if m.Bodyless = intake.IsBodyless(raw); m.Bodyless {
		l.watchdog.Doubt()
	}
	if l.due {
		origin, header, err := retry.Unwrap(raw.Header)
		if err != nil && m.Bodyless {
			m.ReturnBodyless()
			return
		}
		if errors.Is(err, retry.ErrOtherVersion) {
			m.Newer(err)
			return
		}
		if err != nil {
			m.Foreign(err)
			return
		}
		if origin.Stream != l.origin {
			l.unwanted.strays.Take(&m.Arrival, &origin)
			return
		}
		if !dlq.BodyElsewhere(raw.Header) && l.unwanted.othersWant(origin) {
			origin.Route = retry.NoRoute
			l.unwanted.strays.Take(&m.Arrival, &origin)
			return
		}
		m.Origin, m.Subject, m.Header = &origin, origin.Subject, header
		if p := m.route.cfg.part; p != nil && !m.Bodyless {
			m.ToPartition(m.route.intake, p)
			return
		} else if p != nil {
			m.ReturnBodyless()
			return
		}
	} else if m.route == nil {
		m.on(l.routes[0]) // which holds it, if it must be held
		l.unwanted.strays.Take(&m.Arrival, nil)
		return
	} else if p := m.route.cfg.part; p != nil && !m.OfPartition(p) {
		return
	}
	m.Elsewhere = m.Bodyless || (l.due || m.Moved) && dlq.BodyElsewhere(raw.Header)
	rec, known := retry.Record{}, true
	if d.Deliveries > 1 {
		rec, known = l.Records.Cached(d.Sequence, d.Deliveries)
	}
	known = known && !m.Elsewhere
	switch ordered := m.route.cfg.Order == supervisor.OrderKey; {
	case known && (!ordered || l.ordered.behind.Load() == 0):
		m.known(rec, b)
	case ordered:
		// The messages after it must not overtake it, nor it those before it. The loop does not wait for it: answers to
		// settlements and leases come this way too.
		b.deliver()
		l.ordered.behind.Add(1)
		enter := func() { m.LookUp(m.route.intake, m.enter) }
		if known {
			rec := rec // the other one must not escape
			enter = func() { m.enter(rec) }
		} else if !m.Elsewhere { // a body has to wait for its memory, in order
			m.WillAsk()
			l.ordered.aheads.Go(func() { m.AskAhead(m.route.intake, now) })
		}
		l.ordered.inOrder.Go(func() {
			enter()
			if l.ordered.behind.Add(-1) == maxBehind/2 {
				l.pulls.Wake()
			}
		})
	default:
		m.route.looks.Go(func() { m.LookUp(m.route.intake, m.enter) })
	}
}

// giveBack gives back what another durable of the same name sent for a pull of this one. If the message is of neither, this settles nothing.
func (l *loop) giveBack(raw *nats.Msg) { _ = l.relay.nc.Publish(raw.Reply, []byte("-NAK")) }

// giveBackArrived gives back what has arrived for a durable that is gone and was not looked at.
func (l *loop) giveBackArrived() {
	for {
		select {
		case m := <-l.pulls.Arrived():
			l.take(m)
		default:
			return
		}
	}
}

// enter is known for a message that comes alone.
func (m *message) enter(rec retry.Record) {
	var b batch
	m.known(rec, &b)
	b.deliver()
}

// asksAhead is how many messages are asked about at once that enter one after the other.
const asksAhead = 64

// maxBehind is with how many messages of ordered keys that wait for what is asked first no more are pulled: they are not in
// the window, which bounds all others.
const maxBehind = 256

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

// letGo releases a delivery that is of no use.
func (m *message) letGo() {
	var r *intake.Route
	if m.route != nil {
		r = m.route.intake
	}
	m.LetGo(r)
}
