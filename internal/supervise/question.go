package supervise

import "time"

// Before a message starts, its owner may have to ask somebody whether it is still wanted. The answer takes a round trip, or never
// comes, and no slot is held for it: when its turn for a slot comes, a message that nobody was asked about leaves the group, and is
// back with the answer.
//
//	line of its key ── its turn, Asked? no ──▶ beside, with its owner: Ask ── Answered ─┬─ back in line: Asked? yes ──▶ slot
//	                                                                                    └─ given back, or settled
//
// Nothing of an ordered key overtakes it meanwhile. Only what flows is asked about: what could not start now would have another
// answer by then. Probes of a key or a route, and what must run alone, start as they are: their owner asks in the slot.

// Asker is a Work whose Message says Asks.
type Asker interface {
	Work
	// Asked tells whether the message may start as it is. It is called under the group's lock: it must not block, nor call the group.
	Asked(now time.Time) bool
	// Ask begins to ask. It must not block. The message is not in the group until Answered is called, which must be done once, whatever
	// happens; after Drain it goes back to its stream then.
	Ask(g *Group)
}

// asks hands m, which k could start now, to its owner if somebody must be asked first.
func (k *key) asks(t *turn, m *Message) bool {
	if !m.Asks || !k.flows() {
		return false
	}
	w := m.Work.(Asker)
	if w.Asked(t.now) {
		return false
	}
	t.take(k, m)
	if t.opts.Ordered {
		k.outside.add(m.Sequence, &absent{beside: true}, &t.order.called)
	}
	t.window.meter.done++ // it makes room for others as if it were
	group := t.group
	t.call(func() { w.Ask(group) })
	t.window.tellMore(t)
	k.attend(t)
	return true
}

// Answered takes back a message after its owner has asked about it (see [Asker]). The verdict is an Ack if it may start, a Snooze
// if it has to come again later, or Lost.
func (g *Group) Answered(m *Message, v Verdict) {
	t := g.lock()
	if v.Kind == Ack || v.Kind == Snooze && t.closing {
		t.deliver(m)
		t.window.spill(t)
	} else {
		k := t.keys[m.Key]
		if k != nil {
			k.outside.back(m.Sequence)
		}
		if v.Kind == Snooze {
			t.giveBack(m, t.now.Add(max(v.Delay, minGiveBack)), "snoozed", v.Err)
			t.last().Snoozed = true
			if k = t.keys[m.Key]; k != nil && k.outside.absent[m.Sequence] != nil {
				// It comes by itself when that is over. Called back before, it would have to go again.
				a := k.outside.absent[m.Sequence]
				a.away, a.due = nil, a.until
			}
		} else {
			t.settle(m, Outcome{Action: LetGo, Why: "nobody wants it"})
		}
		if k != nil {
			k.attend(t)
		}
	}
	t.startAll()
	t.unlock()
}
