package supervisor

import "time"

// outside are the messages of an ordered key that left without being done and have not come again, by sequence. Nothing
// overtakes them, until they are so late that another instance must have them.
type outside struct {
	until map[uint64]time.Time
	first uint64 // the smallest of them
}

// outsideFor is how long an ordered key waits for a message beyond its due time.
const outsideFor = time.Minute

func (o *outside) add(seq uint64, until time.Time) {
	if o.until == nil {
		o.until = make(map[uint64]time.Time)
	}
	if len(o.until) == 0 || seq < o.first {
		o.first = seq
	}
	o.until[seq] = until
}

// back notes that a message came again.
func (o *outside) back(seq uint64) {
	if _, known := o.until[seq]; !known {
		return
	}
	delete(o.until, seq)
	if seq == o.first {
		o.sweep(time.Time{})
	}
}

// next is the smallest sequence that is still expected, and until when.
func (o *outside) next(now time.Time) (seq uint64, until time.Time, any bool) {
	if len(o.until) > 0 && !now.Before(o.until[o.first]) {
		o.sweep(now)
	}
	if len(o.until) == 0 {
		return 0, time.Time{}, false
	}
	return o.first, o.until[o.first], true
}

// sweep forgets what is not expected any more, and finds the smallest again. It is called once for many, since most
// messages of a key leave and come again together.
func (o *outside) sweep(now time.Time) {
	found := false
	for seq, until := range o.until {
		if !now.Before(until) {
			delete(o.until, seq)
		} else if !found || seq < o.first {
			o.first, found = seq, true
		}
	}
}

// away notes that a message of an ordered key leaves, to come again at due.
func (g *Group) away(m *Message, due time.Time) {
	if !g.opts.Ordered || g.closing {
		return
	}
	k := g.keys[m.Key]
	if k == nil {
		k = g.newKey(m.Key) // its key ended while it ran
	}
	k.outside.add(m.Sequence, due.Add(outsideFor))
	g.wakeAt(k, due.Add(outsideFor))
}

// blocked tells whether a message of an ordered key has to wait for its own delay or for an earlier message.
func (g *Group) blocked(k *key, m *Message, now time.Time) bool {
	if m.storing || m.Due.After(now) || g.gate.holds(m, now) {
		return true
	}
	first, _, any := k.outside.next(now)
	return any && first < m.Sequence
}

// head is the first message of an ordered key, if it may start.
func (g *Group) head(k *key, now time.Time) *Message {
	m := k.stash.first
	if m == nil {
		m = k.fresh.first
	}
	if m == nil || g.blocked(k, m, now) {
		return nil
	}
	return m
}
