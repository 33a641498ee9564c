package gaps

import "time"

// The server numbers the deliveries of a durable without gaps (the consumer sequence), redeliveries too. Whoever is alone on
// a durable sees every number, so a gap tells exactly how many deliveries were lost. What was lost since the delivery
// before the gap is above the highest stream sequence until then, or was a redelivery: so nothing above that sequence
// starts until as many messages of the gap as were lost have come, or AckWait and a little more is over. While they come, the time
// is prolonged: a stash that is full of what waits for them lets them in slowly. What a former
// life had in hand is such a gap, too: from the ack floor to what was delivered.
//
// With other instances on the durable a gap says nothing: they have these deliveries. A gap that stays open although nothing
// happened to the connection or the leader shows that there are others. From then on only gaps after such an event
// count, until many deliveries in a row have come without any. Time alone proves nothing: with little traffic no gap is seen for
// minutes, because nothing is delivered. There is no order over several instances anyway.
type gate struct {
	last uint64 // consumer sequence of the latest delivery
	top  uint64 // the highest stream sequence that was delivered
	// event is when deliveries may have been lost. The gap that shows it comes a little later, or was seen before: what the old
	// connection brought, what the new one brings, and the word that it is a new one have no order.
	event time.Time
	gaps  []gap // open ones, oldest first; at most maxGaps
	added int   // so many there were
	// shared: other instances take deliveries of the durable.
	shared  bool
	alone   bool          // the route is this instance's: nobody else takes deliveries
	run     int           // deliveries without a gap before them since the latest gap, one for each aloneEvery
	counted time.Time     // when run was counted up, or begun anew
	span    time.Duration // AckWait and a little more
	cameAt  time.Time     // when something of a gap came
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

const (
	// aloneRun deliveries without a gap show that an instance is alone on the durable again. Of those that come within aloneEvery
	// of each other one counts: a burst may come while the other instances have no room. So it takes a minute at least.
	aloneRun   = 30
	aloneEvery = 2 * time.Second
	// maxComingBack is how many of the missing messages are asked for at once, whatever the stash has room for.
	maxComingBack = 256
	// maxGaps are kept apart. Later ones widen the last one: each delivery is compared with all of them.
	maxGaps = 16
)

// mayHaveLost says that something happened that loses deliveries. Gaps that are open may be of that, and what was to fill them may
// be lost once more.
func (t *gate) mayHaveLost(now time.Time) {
	t.event = now
	for i := range t.gaps {
		t.gaps[i].event = true
	}
	t.prolong(now.Add(t.span))
}

func (t *gate) prolong(until time.Time) {
	for i := range t.gaps {
		if p := &t.gaps[i]; p.until.Before(until) {
			p.until = until
		}
	}
}

// begin is the state of a durable that is opened: pending of its deliveries are in nobody's hand, as far as is known.
func (t *gate) begin(lastConsumer, ackFloor, delivered uint64, pending int, ackWait time.Duration, now time.Time) {
	*t = gate{last: lastConsumer, top: delivered, span: ackWait + gateSlack, alone: t.alone}
	if pending > 0 {
		t.add(gap{from: ackFloor, to: delivered + 1, missing: pending, event: true}, now)
	}
}

func (t *gate) add(p gap, now time.Time) {
	p.until = now.Add(t.span)
	t.added++
	if n := len(t.gaps); n == maxGaps {
		l := &t.gaps[n-1]
		l.to, l.missing, l.until, l.event = 0, l.missing+p.missing, p.until, l.event || p.event
		return
	}
	p.seen = make(map[uint64]struct{})
	t.gaps = append(t.gaps, p)
}

// delivered notes a delivery, and reports whether more has to wait than before, and whether less may have to.
func (t *gate) delivered(sequence, consumer, deliveries uint64, now time.Time) (more, less bool) {
	if lost := int64(consumer - t.last - 1); lost > 0 {
		event := !t.event.IsZero() && now.Sub(t.event) < t.span
		if event || !t.shared {
			t.add(gap{from: t.top, missing: int(lost), event: event}, now)
			more = true
		}
		if t.shared {
			t.event = time.Time{} // the next one is of the others
		}
		t.run, t.counted = 0, now
	} else if now.Sub(t.counted) >= aloneEvery {
		t.run, t.counted = t.run+1, now
		t.shared = t.shared && t.run < aloneRun
	}
	t.last = consumer
	if deliveries == 1 {
		for i := range t.gaps {
			if t.gaps[i].to == 0 {
				t.gaps[i].to = sequence
			}
		}
		t.top = max(t.top, sequence)
		return more, false
	}
	for i := range t.gaps {
		p := &t.gaps[i]
		if sequence > p.from && (p.to == 0 || sequence < p.to) {
			before := len(p.seen)
			p.seen[sequence] = struct{}{}
			less = less || len(p.seen) >= p.missing
			if len(p.seen) > before {
				if t.cameAt = now; p.until.Sub(now) < gateSlack {
					p.until = now.Add(2 * gateSlack)
					more = true
				}
			}
		}
	}
	return more && !less, less
}

// missingTo is the highest stream sequence that may be missing. What was delivered after that is here, or was given back to wait.
func (t *gate) missingTo() (to uint64) {
	for _, p := range t.gaps {
		if p.to == 0 {
			return t.top
		}
		to = max(to, p.to-1)
	}
	return to
}

// coming is how many messages are sure to come that are waited for: nothing can start before them, so there is always room for a
// few of them.
func (t *gate) coming(now time.Time) (n int) {
	if now.Sub(t.cameAt) > gateSlack {
		return 0
	}
	for _, p := range t.gaps {
		n += p.missing - len(p.seen)
	}
	return min(n, maxComingBack)
}

// open drops the gaps that are filled or over, and returns what has to wait, and until when at most. A time that is over says
// that nothing has to.
func (t *gate) open(now time.Time) (above uint64, until time.Time) {
	rest := t.gaps[:0]
	for _, p := range t.gaps {
		filled, over := len(p.seen) >= p.missing, !now.Before(p.until)
		if over && !filled && !p.event && !t.alone {
			t.shared = true // later gaps say nothing, either
		}
		if !filled && !over && (p.event || !t.shared) {
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

// fill says that nothing is missing any more.
func (t *gate) fill() {
	clear(t.gaps)
	t.gaps = t.gaps[:0]
}
