package supervisor

import "time"

// putStash holds a message because its key waits. The caller sees to the bound.
func (g *Group) putStash(k *key, m *Message, now time.Time, fx *effects) {
	if g.opts.Ordered {
		g.stashWindow(k, now, fx) // one line only, or a later message would find itself at the head of the other
	}
	g.pushStash(k, m, now, fx)
}

func (g *Group) pushStash(k *key, m *Message, now time.Time, fx *effects) {
	if g.neverFits(m) {
		g.evict(k, m, now, fx) // all others would have to go before it
		return
	}
	switch {
	case g.opts.Ordered:
		k.stash.pushBySequence(m)
	case m.Due.After(now):
		k.later.pushByDue(m)
		g.wakeAt(k, m.Due)
	default:
		k.stash.push(m)
	}
	g.stashes(k, m)
}

// stashes counts a message that was put in one of k's lists of the stash.
func (g *Group) stashes(k *key, m *Message) {
	g.stash.add(m, 1)
	if m.judged() {
		g.failing.add(m, 1)
		if k.failing++; k.failing == 1 {
			g.failingKeys.push(k)
		}
	}
	if !g.stashed.has(k) {
		g.stashed.push(k)
	}
}

// stashWindow moves what k has in the window to the stash, because it will not start soon.
func (g *Group) stashWindow(k *key, now time.Time, fx *effects) {
	for _, l := range []*list{&k.due, &k.fresh} {
		for l.first != nil {
			m := l.first
			g.take(k, m)
			g.pushStash(k, m, now, fx)
		}
	}
}

// bound gives messages back until the stash is within its bounds. Those that failed may hold half of it, so that there is
// room for others, which may succeed.
func (g *Group) bound(now time.Time, fx *effects) {
	for {
		var k *key
		var m *Message
		switch {
		case g.failing.messages > max(1, g.opts.StashMessages/2) || g.failing.bytes > g.opts.StashBytes/2 && g.failing.messages > 1:
			k, m = g.failedVictim()
		case g.stash.messages <= g.opts.StashMessages && g.stash.bytes <= g.opts.StashBytes:
			return
		case g.route.state != Flowing && g.failing.messages > 0:
			k, m = g.failedVictim()
		default:
			k, m = g.idleVictim()
		}
		g.take(k, m)
		g.evict(k, m, now, fx)
	}
}

// failedVictim is a message that failed before. Of an ordered key the newest goes first, so that the rest may go on in order.
func (g *Group) failedVictim() (*key, *Message) {
	k := g.failingKeys.first
	if g.opts.Ordered {
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
func (g *Group) idleVictim() (*key, *Message) {
	k := g.stashed.first
	if g.route.state != Flowing {
		for other := k; other != nil; other = other.lists[g.stashed.id].next {
			if other.state != Flowing {
				k = other
				break
			}
		}
	}
	switch {
	case g.opts.Ordered:
		return k, k.stash.last
	case k.stash.n > 0:
		return k, k.stash.first
	}
	return k, k.later.last
}

// neverFits tells whether the stash cannot hold m, whatever else is in it.
func (g *Group) neverFits(m *Message) bool { return m.Size > g.opts.StashBytes }

// evict gives back what the stash has no room for.
func (g *Group) evict(k *key, m *Message, now time.Time, fx *effects) {
	g.counts.Evicted++
	g.giveBack(m, now.Add(g.overflow(k, m, now)), now, "the stash is full", k.lastErr, fx)
	if k.messages() == 0 {
		g.wakeAt(k, now) // it may be forgotten, but not by the one who is at work on it
	}
}

// stalledAfter is how long a key may hold its slots without finishing anything before its messages make room for others.
const stalledAfter = time.Second

// spill moves the messages of stalled keys from a full window to the stash: a key whose handlers, or whose factory, hang
// must not keep the pull loop from fetching the messages of others.
func (g *Group) spill(now time.Time, fx *effects) {
	if !g.windowFull(now) || now.Sub(g.spilled) < meterPeriod {
		return
	}
	g.spilled = now
	for r := g.running.first; r != nil; r = r.next {
		k := r.k
		started := r.deadline.Add(-g.opts.Timeout)
		if k.fresh.n+k.due.n > 0 && now.Sub(started) >= stalledAfter && now.Sub(k.lastDone) >= stalledAfter &&
			g.full(k, now) {
			g.stashWindow(k, now, fx)
		}
	}
	g.stashRetries(now, fx)
	for _, b := range g.births {
		if now.Sub(b.began()) >= stalledAfter {
			g.stashWindow(b.k, now, fx)
		}
	}
	g.bound(now, fx)
}
