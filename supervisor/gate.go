package supervisor

import "time"

// gate holds new messages of an ordered route at its start, until those that an earlier life of it had in hand came back:
// the server delivers them again only after AckWait, and new ones at once.
type gate struct {
	above uint64 // sequences above it are new
	left  int    // old ones still expected
	until time.Time
	seen  map[uint64]struct{}
}

// HoldNew makes an ordered group hold messages with a sequence above this one until as many distinct older ones as pending
// were delivered, or until then. It is called before the first Deliver.
func (g *Group) HoldNew(above uint64, pending int, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opts.Ordered && pending > 0 {
		g.gate = gate{above: above, left: pending, until: until, seen: make(map[uint64]struct{})}
	}
}

func (t *gate) holds(m *Message, now time.Time) bool {
	return t.left > 0 && m.Sequence > t.above && !m.Replayed && now.Before(t.until)
}

// pass notes a message that arrives, and lets the others go when it was the last that was expected.
func (g *Group) pass(m *Message) {
	t := &g.gate
	if t.left == 0 || m.Sequence > t.above || m.Replayed {
		return
	}
	if _, known := t.seen[m.Sequence]; known {
		return
	}
	t.seen[m.Sequence] = struct{}{}
	if t.left--; t.left == 0 {
		t.seen = nil
		for k := g.stashed.first; k != nil; k = k.lists[g.stashed.id].next {
			g.makeReady(k)
		}
	}
}

// Renumbered says that sequences begin anew: what an ordered group expects to come again never will.
func (g *Group) Renumbered() {
	var fx effects
	now := g.lock()
	g.gate = gate{}
	for _, k := range g.keys {
		k.outside = outside{}
		g.attend(k, now, &fx)
	}
	g.startAll(now)
	g.unlock(&fx)
}
