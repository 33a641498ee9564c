package source

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// admit begins the lease of a delivery and finds out what is known of it. What needs the server for that comes to its
// route a little later; the rest is added to the batch.
func (l *loop) admit(raw *nats.Msg, now time.Time, b *batch) {
	m := l.spares.take(l.Source, raw)
	if m.on(l.routeFor(raw.Subject)); m.Route != nil {
		m.delivery.InHand = m.Route.Memory.InHand
	}
	d, err := l.Session.ReceiveInto(&m.delivery, raw)
	if err != nil {
		l.log.Error("a message arrived that is not a JetStream delivery; it is ignored", "error", err)
		return
	}
	if d == nil && l.Health.IsLost() {
		l.giveBack(raw)
		return
	}
	if l.suspect.Delivered(raw, m.delivery.Consumer) {
		if d != nil {
			d.Release()
		}
		return
	}
	place := catchup.Outside
	if !l.due {
		place = l.CatchUp.Place(m.delivery.Sequence, m.delivery.Time, raw.Subject)
	}
	l.tallied(m.Route, &m.delivery, raw.Subject, place)
	if l.ordered.gaps.Delivered(m.delivery.Sequence, m.delivery.Consumer, m.delivery.Deliveries, now) {
		defer func() {
			b.deliver()
			l.ordered.gaps.Hold(now)
		}()
	}
	l.Pulls.Told(m.delivery.Pending, m.delivery.Deliveries)
	if d == nil {
		return
	}
	l.Count.Delivered.Add(1)
	m.Delivery = d
	if d.FencedAt(now) {
		// It comes from a link that stalled for longer than AckWait: another instance has it by now.
		m.on(l.RouteOf(raw.Subject))
		m.letGo()
		l.Count.Late.Add(1)
		l.late.Came(l.log, l.in.Stalled, now)
		return
	}
	l.late.End()
	if place != catchup.Outside {
		m.passed(place)
		return
	}
	if m.Bodyless = intake.IsBodyless(raw); m.Bodyless {
		l.Watchdog.Doubt()
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
			l.Unwanted.strays.Take(&m.Arrival, &origin)
			return
		}
		if !dlq.BodyElsewhere(raw.Header) && l.Unwanted.othersWant(origin) {
			origin.Route = retry.NoRoute
			l.Unwanted.strays.Take(&m.Arrival, &origin)
			return
		}
		m.Origin, m.Subject, m.Header = &origin, origin.Subject, header
		if p := m.Route.Part; p != nil && !m.Bodyless {
			m.ToPartition(m.Route.Intake, p)
			return
		} else if p != nil {
			m.ReturnBodyless()
			return
		}
	} else if m.Route == nil {
		m.on(l.routes[0]) // which holds it, if it must be held
		l.Unwanted.strays.Take(&m.Arrival, nil)
		return
	} else if p := m.Route.Part; p != nil && !m.OfPartition(p) {
		return
	}
	m.Elsewhere = m.Bodyless || (l.due || m.Moved) && dlq.BodyElsewhere(raw.Header)
	rec, known := retry.Record{}, true
	if d.Deliveries > 1 {
		rec, known = l.Records.Cached(d.Sequence, d.Deliveries)
	}
	known = known && !m.Elsewhere
	switch ordered := m.Route.Ordered; {
	case known && (!ordered || l.ordered.behind.Load() == 0):
		m.enter(rec, b)
	case ordered:
		// The messages after it must not overtake it, nor it those before it. The loop does not wait for it: answers to
		// settlements and leases come this way too.
		b.deliver()
		l.ordered.behind.Add(1)
		enter := func() { m.LookUp(m.Route.Intake, m.enterAlone) }
		if known {
			rec := rec // the other one must not escape
			enter = func() { m.enterAlone(rec) }
		} else if !m.Elsewhere { // a body has to wait for its memory, in order
			m.WillAsk()
			l.ordered.aheads.Go(func() { m.AskAhead(m.Route.Intake, now) })
		}
		l.ordered.inOrder.Go(func() {
			enter()
			if l.ordered.behind.Add(-1) == MaxBehind/2 {
				l.Pulls.Wake()
			}
		})
	default:
		m.Route.Looks.Go(func() { m.LookUp(m.Route.Intake, m.enterAlone) })
	}
}

// giveBack gives back what another durable of the same name sent for a pull of this one. If the message is of neither, this settles nothing.
func (l *loop) giveBack(raw *nats.Msg) { _ = l.in.Conn.Publish(raw.Reply, []byte("-NAK")) }

// giveBackArrived gives back what has arrived for a durable that is gone and was not looked at.
func (l *loop) giveBackArrived() {
	for {
		select {
		case m := <-l.Pulls.Arrived():
			l.take(m)
		default:
			return
		}
	}
}

// enter adds the message to the batch: all is known of it.
func (m *Incoming) enter(rec retry.Record, b *batch) {
	rt := m.Route // which a message that is settled may not have any more
	if of := m.work.Enter(rec); of != nil {
		b.add(rt, of)
	}
}

// enterAlone is enter for a message that comes alone.
func (m *Incoming) enterAlone(rec retry.Record) {
	var b batch
	m.enter(rec, &b)
	b.deliver()
}

// asksAhead is how many messages are asked about at once that enter one after the other.
const asksAhead = 64

// MaxBehind is with how many messages of ordered keys that wait for what is asked first no more are pulled: they are not in
// the window, which bounds all others.
const MaxBehind = 256
