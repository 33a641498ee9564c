package consumer

import (
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/supervisor"
)

// Ordered routes need to know of messages that the server delivered and that never arrived: a connection was cut, another
// server leads the durable, a former life of the process had them. They come again after AckWait, and later ones of their keys
// at once.
//
// The server numbers the deliveries of a durable without gaps (the consumer sequence), redeliveries too. Whoever is alone on
// a durable sees every number, so a gap tells exactly how many deliveries were lost. What was lost since the delivery
// before the gap is above the highest stream sequence until then, or was a redelivery: so nothing above that sequence
// starts until as many messages of the gap as were lost have come, or AckWait and a little more is over. What a former
// life had in hand is such a gap, too: from the ack floor to what was delivered.
//
// With other instances on the durable a gap says nothing: they have these deliveries. A gap that stays open although nothing
// happened to the connection or the leader shows that there are others. From then on only gaps after such an event
// count, until a minute has passed without any. There is no order over several instances anyway.
type gate struct {
	last  uint64 // consumer sequence of the latest delivery
	top   uint64 // the highest stream sequence that was delivered
	event bool   // deliveries may have been lost since the latest one
	gaps  []gap  // open ones, oldest first
	gapAt time.Time
	// shared: other instances take deliveries of the durable.
	shared bool
	span   time.Duration // AckWait and a little more
}

// gap is where deliveries are missing.
type gap struct {
	from, to uint64 // stream sequences between which the missing ones are, both excluded; to is 0 while it is not known
	missing  int
	seen     map[uint64]struct{}
	until    time.Time
	event    bool // something happened that loses deliveries
}

// gateSlack is how much later than AckWait the server may deliver again.
const gateSlack = 2 * time.Second

// alone is after how long without a gap an instance takes itself to be alone on the durable again.
const alone = time.Minute

// begin is the state of a durable that is opened: pending of its deliveries are in nobody's hand, as far as is known.
func (t *gate) begin(lastConsumer, ackFloor, delivered uint64, pending int, ackWait time.Duration, now time.Time) {
	*t = gate{last: lastConsumer, top: delivered, span: ackWait + gateSlack}
	if pending > 0 {
		t.add(gap{from: ackFloor, to: delivered + 1, missing: pending, event: true}, now)
	}
}

func (t *gate) add(p gap, now time.Time) {
	p.seen, p.until = make(map[uint64]struct{}), now.Add(t.span)
	t.gaps = append(t.gaps, p)
}

// delivered notes a delivery, and reports whether what has to wait has changed.
func (t *gate) delivered(sequence, consumer, deliveries uint64, now time.Time) (changed bool) {
	if lost := int64(consumer - t.last - 1); lost > 0 {
		if t.shared && now.Sub(t.gapAt) > alone {
			t.shared = false
		}
		if t.event || !t.shared {
			t.add(gap{from: t.top, missing: int(lost), event: t.event}, now)
			changed = true
		}
		t.gapAt = now
	}
	t.last, t.event = consumer, false
	if deliveries == 1 {
		for i := range t.gaps {
			if t.gaps[i].to == 0 {
				t.gaps[i].to = sequence
			}
		}
		t.top = max(t.top, sequence)
		return changed
	}
	for i := range t.gaps {
		p := &t.gaps[i]
		if sequence > p.from && (p.to == 0 || sequence < p.to) {
			p.seen[sequence] = struct{}{}
			changed = changed || len(p.seen) >= p.missing
		}
	}
	return changed
}

// open drops the gaps that are filled or over, and returns what has to wait, and until when at most. A time that is over says
// that nothing has to.
func (t *gate) open(now time.Time) (above uint64, until time.Time) {
	rest := t.gaps[:0]
	for _, p := range t.gaps {
		filled, over := len(p.seen) >= p.missing, !now.Before(p.until)
		if over && !filled && !p.event {
			t.shared = true
		}
		if !filled && !over {
			rest = append(rest, p)
			if p.until.After(until) {
				until = p.until
			}
		}
	}
	clear(t.gaps[len(rest):])
	if t.gaps = rest; len(rest) > 0 {
		above = rest[0].from
	}
	return above, until
}

// hold tells the ordered routes what has to wait. Letting go takes the way of the messages, so that none of those that were
// waited for is overtaken while something is asked about it.
func (s *source) hold(now time.Time, letGo bool) {
	above, until := s.gate.open(now)
	version := s.held.Add(1)
	tell := func() {
		if s.held.Load() != version {
			return // outdated
		}
		for _, rt := range s.routes {
			rt.group.HoldAbove(above, until)
		}
	}
	if letGo {
		s.inOrder.Go(tell)
	} else {
		tell()
	}
}

// watch notes a delivery of a durable with ordered routes. It returns true if messages may go now: once this one is with its
// route.
func (s *source) watch(d *ack.Delivery, now time.Time) (mayGo bool) {
	if !s.ordered {
		return false
	}
	gaps := len(s.gate.gaps)
	if !s.gate.delivered(d.Sequence, d.Consumer, d.Deliveries, now) {
		return false
	}
	if len(s.gate.gaps) == gaps {
		return true
	}
	lost := s.gate.gaps[gaps]
	s.log.Warn("deliveries were lost on their way; later messages of ordered routes wait until they come again",
		"count", lost.missing, "above", lost.from, "until", lost.until)
	s.hold(now, false)
	return false
}

// mayHaveLost says that something happened that loses deliveries.
func (s *source) mayHaveLost() { s.gate.event = true }

// letGo releases a delivery that is of no use. Its message comes again, and ordered keys wait for it.
func (m *message) letGo() {
	m.delivery.Release()
	if m.route != nil && !m.source.due && m.route.cfg.Order == supervisor.OrderKey {
		m.route.group.Expect(m.route.keyOf(m.subject), m.delivery.Sequence)
	}
}
