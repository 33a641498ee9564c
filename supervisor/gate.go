package supervisor

import "time"

// gate holds the later messages of an ordered route while earlier ones are on their way: those that a former life of the
// process had in hand, and those whose delivery was lost. The server delivers these again only after AckWait, and later
// ones at once.
type gate struct {
	above uint64 // sequences above it wait
	since time.Time
	until time.Time
}

// HoldAbove makes an ordered group hold messages with a sequence above this one until then, or until it is told otherwise:
// the last call counts, and a time that is over lets all of them go.
func (g *Group) HoldAbove(above uint64, until time.Time) {
	if !g.opts.Ordered {
		return
	}
	t := g.lock()
	gate := &t.order.gate
	if !t.now.Before(gate.until) {
		gate.since = t.now
	}
	gate.above, gate.until = above, until
	for k := range t.stash.keys.all() {
		t.attend(k)
	}
	t.startAll()
	t.unlock()
}

func (g *gate) holds(m *Message, now time.Time) bool {
	return m.Sequence > g.above && !m.Replayed && now.Before(g.until)
}

// Expect says that a message of a key will be redelivered, although the group does not have it: its delivery could not be
// used. Later messages of an ordered key wait for it.
func (g *Group) Expect(key string, sequence uint64) {
	if !g.opts.Ordered {
		return
	}
	t := g.lock()
	defer t.unlock()
	t.away(&Message{Key: key, Sequence: sequence}, t.now)
}

// Ended says that a message of a key was redelivered and that its owner settles it: it will not be delivered to the group. Later
// messages of an ordered key stop waiting for it.
func (g *Group) Ended(key string, sequence uint64) {
	if !g.opts.Ordered {
		return
	}
	t := g.lock()
	defer t.unlock()
	if k := t.keys[key]; k != nil && !t.closing {
		k.outside.back(sequence)
		t.attend(k)
		t.startAll()
	}
}

// Renumbered says that sequences begin again: messages that an ordered group still expects will never be redelivered.
func (g *Group) Renumbered() {
	t := g.lock()
	t.order.gate, t.order.called, t.aside.fresh.called, t.aside.judged.called = gate{}, 0, 0, 0
	for _, k := range t.keys {
		k.outside = outside{}
		t.attend(k)
	}
	t.startAll()
	t.unlock()
}
