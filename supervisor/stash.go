package supervisor

import "time"

// putStash holds a message because its key waits. The caller sees to the bound.
func (t *turn) putStash(k *key, m *Message) {
	if t.opts.Ordered {
		t.stashWindow(k) // one line only, or a later message would find itself at the head of the other
	}
	t.pushStash(k, m)
}

func (t *turn) pushStash(k *key, m *Message) {
	if t.neverFits(m) {
		t.evict(k, m) // all others would have to go before it
		return
	}
	switch {
	case t.opts.Ordered:
		k.stash.pushBySequence(m)
	case m.Due.After(t.now):
		k.later.pushByDue(m)
		t.wakeAt(k, m.Due)
	default:
		k.stash.push(m)
	}
	t.stashes(k, m)
}

// stashes counts a message that was put in one of k's lists of the stash.
func (t *turn) stashes(k *key, m *Message) {
	t.stash.add(m, 1)
	if m.judged() {
		t.failing.add(m, 1)
		if k.failing++; k.failing == 1 {
			t.failingKeys.push(k)
		}
	}
	if !t.stashed.has(k) {
		t.stashed.push(k)
	}
}

// stashWindow moves what k has in the window to the stash, because it will not start soon.
func (t *turn) stashWindow(k *key) {
	for _, l := range []*list{&k.due, &k.fresh} {
		for l.first != nil {
			m := l.first
			t.take(k, m)
			t.pushStash(k, m)
		}
	}
}

// bound gives messages back until the stash is within its bounds. Those that failed may hold half of it, so that there is
// room for others, which may succeed.
func (t *turn) bound() {
	for {
		var k *key
		var m *Message
		switch {
		case t.failing.messages > max(1, t.opts.StashMessages/2) || t.failing.bytes > t.opts.StashBytes/2 && t.failing.messages > 1:
			k, m = t.failedVictim()
		case t.stash.messages <= t.opts.StashMessages && t.stash.bytes <= t.opts.StashBytes:
			return
		case t.route.state != Flowing && t.failing.messages > 0:
			k, m = t.failedVictim()
		default:
			k, m = t.idleVictim()
		}
		t.take(k, m)
		t.evict(k, m)
	}
}

// failedVictim is a message that failed before. Of an ordered key the newest goes first, so that the rest may go on in order.
func (t *turn) failedVictim() (*key, *Message) {
	k := t.failingKeys.first
	if t.opts.Ordered {
		return k, k.stash.last
	}
	for m := k.later.last; m != nil; m = m.prev {
		if m.judged() {
			return k, m
		}
	}
	m := k.stash.first
	for !m.judged() {
		m = m.next
	}
	return k, m
}

// idleVictim is the oldest message of the key that has been idle longest; while the route waits, of one that waits by itself,
// too, if there is such a key: the others may be asked as probes.
func (t *turn) idleVictim() (*key, *Message) {
	k := t.stashed.first
	if t.route.state != Flowing {
		for other := k; other != nil; other = other.lists[t.stashed.id].next {
			if other.state != Flowing {
				k = other
				break
			}
		}
	}
	switch {
	case t.opts.Ordered:
		return k, k.stash.last
	case k.stash.n > 0:
		return k, k.stash.first
	}
	return k, k.later.last
}

// neverFits tells whether the stash cannot hold m, whatever else is in it.
func (t *turn) neverFits(m *Message) bool { return m.Size > t.opts.StashBytes }

// evict gives back what the stash has no room for.
func (t *turn) evict(k *key, m *Message) {
	t.counts.Evicted++
	t.giveBack(m, t.now.Add(t.overflow(k, m)), "the stash is full", k.lastErr)
	if k.messages() == 0 {
		t.wakeAt(k, t.now) // it may be forgotten, but not by the one who is at work on it
	}
}

// stalledAfter is how long a key may hold its slots without finishing anything before its messages make room for others.
const stalledAfter = time.Second

// spill moves the messages of stalled keys from a full window to the stash: a key whose handlers, or whose factory, hang
// must not keep the pull loop from fetching the messages of others.
func (t *turn) spill() {
	if !t.windowFull() || t.now.Sub(t.spilled) < meterPeriod {
		return
	}
	t.spilled = t.now
	for r := t.running.first; r != nil; r = r.next {
		k := r.k
		started := r.deadline.Add(-t.opts.Timeout)
		if k.fresh.n+k.due.n > 0 && t.now.Sub(started) >= stalledAfter && t.now.Sub(k.lastDone) >= stalledAfter &&
			t.full(k) {
			t.stashWindow(k)
		}
	}
	t.stashRetries()
	for _, b := range t.births {
		if t.now.Sub(b.began()) >= stalledAfter {
			t.stashWindow(b.k)
		}
	}
	t.bound()
}
