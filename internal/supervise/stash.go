package supervise

// stash counts the messages that wait: for their key or their route in the lines held, for their own time in the lines later
// of their keys. It is bounded in messages and bytes over all keys. When it is full, the key that has been idle longest gives
// a message back; and messages that failed may hold half of it, so that there is room for others, which may succeed.
type stash struct {
	usage
	most   usage
	failed usage     // of them, those that failed before
	guests usage     // beyond that, what the route in doubt is about to ask: few, however small the stash is
	keys   list[key] // with messages in it, least recently active first
	// failedKeys are those with messages in it that failed before.
	failedKeys list[key]
}

// put counts a message that was put in one of k's lines.
func (s *stash) put(k *key, m *Message) {
	if m.guest {
		s.guests.add(m)
		k.guests++
	} else {
		s.add(m)
	}
	if m.judged() {
		s.failed.add(m)
		if k.failedHeld++; k.failedHeld == 1 {
			s.failedKeys.push(&k.inFailed, k)
		}
	}
	if !s.keys.has(&k.inStash) {
		s.keys.push(&k.inStash, k)
	}
}

// take counts a message out.
func (s *stash) take(k *key, m *Message) {
	if m.guest {
		s.guests.took(m)
		k.guests--
		m.guest = false
	} else {
		s.took(m)
	}
	if m.judged() {
		s.failed.took(m)
		if k.failedHeld--; k.failedHeld == 0 {
			s.failedKeys.remove(&k.inFailed)
		}
	}
	if k.held.n+k.later.n == 0 {
		s.keys.remove(&k.inStash)
	}
}

// touch notes that k is active.
func (s *stash) touch(k *key) {
	if s.keys.has(&k.inStash) {
		s.keys.remove(&k.inStash)
		s.keys.push(&k.inStash, k)
	}
}

// neverFits tells whether the stash cannot hold m, whatever else is in it.
func (s *stash) neverFits(m *Message) bool { return m.Size > s.most.bytes }

func (s *stash) full() bool { return s.messages > s.most.messages || s.bytes > s.most.bytes }

// failedFull tells whether messages that failed hold more than their half. There is always room for one. While the route asks they are
// in the way of those that nobody has judged, and few are needed.
func (s *stash) failedFull(route State) bool {
	most := s.most.messages / 2
	if route != Flowing {
		most = min(most/2, maxFailedAsked)
	}
	return s.failed.messages > max(1, most) || s.failed.bytes > s.most.bytes/2 && s.failed.messages > 1
}

// roomForGuest tells whether m is kept beyond the bound, if so many are to be at hand to ask.
func (s *stash) roomForGuest(m *Message, ahead int) bool {
	return s.guests.messages < ahead && s.guests.bytes+m.Size <= MaxWindowBytes
}

// mostlyFailed tells whether messages that failed hold a quarter of it or more.
func (s *stash) mostlyFailed() bool { return 4*s.failed.messages >= s.most.messages }

// maxFailedAsked is how many messages that failed are held while the route asks.
const maxFailedAsked = 64

// room is for how many more messages there is room, if they are as large as those in it.
func (s *stash) room() int {
	n := s.most.messages - s.messages
	if s.bytes > 0 {
		mean := max(1, s.bytes/s.messages)
		n = min(n, (s.most.bytes-s.bytes)/mean)
	}
	return n
}

// idlest is the key that has been idle longest; of those that wait by themselves, if there are any and only these may do.
func (s *stash) idlest(route State) *key {
	if route != Flowing {
		for k := range s.keys.all() {
			if !k.flows() && k.stashed() {
				return k // the others may be asked as probes
			}
		}
	}
	for k := range s.keys.all() {
		if k.stashed() {
			return k
		}
	}
	return s.keys.first()
}

// stashed tells whether messages of k are in the stash that are no guests.
func (k *key) stashed() bool { return k.held.n+k.later.n > k.guests }

// oldest is the message that k gives back first.
func (k *key) oldest() *Message {
	for m := range k.held.all() {
		if !m.guest {
			return m
		}
	}
	if m := k.later.last(); m != nil {
		return m
	}
	return k.held.first()
}

// oldestFailed is the message, of those that failed, that k gives back first.
func (k *key) oldestFailed() *Message {
	for n := k.later.back; n != nil; n = n.prev {
		if n.of.judged() {
			return n.of
		}
	}
	for m := range k.held.all() {
		if m.judged() {
			return m
		}
	}
	return nil
}

// bound gives messages back until the stash is within its bounds. Of an ordered key the newest goes first, so that the
// rest may go on in order.
func (s *stash) bound(t *turn) {
	for {
		var k *key
		var m *Message
		switch {
		case s.failedFull(t.route.is()), s.full() && !t.route.flows() && s.failed.messages > 0:
			k = s.failedKeys.first()
			m = k.oldestFailed()
		case s.full():
			k = s.idlest(t.route.is())
			m = k.oldest()
		default:
			return
		}
		if t.opts.Ordered {
			m = k.held.last()
		}
		t.take(k, m)
		s.evict(t, k, m)
	}
}

// evict gives back what the stash has no room for.
func (s *stash) evict(t *turn, k *key, m *Message) {
	t.counts.Evicted++
	t.aside.put(t, k, m, t.aside.until(m, t.route.waitOf(k)), "the stash is full", k.trouble.lastErr)
	if k.messages() == 0 {
		t.alarm.wake(k, t.now) // it may be forgotten, but not by the one who is at work on it
	}
}

// hold keeps a message because its key waits. The caller sees to the bound.
func (s *stash) hold(t *turn, k *key, m *Message) {
	if t.opts.Ordered {
		k.stashWindow(t) // one line only, or a later message would find itself at the head of the other
	}
	s.push(t, k, m)
}

func (s *stash) push(t *turn, k *key, m *Message) {
	if s.neverFits(m) {
		s.evict(t, k, m) // all others would have to go before it
		return
	}
	switch {
	case t.opts.Ordered:
		k.pushBySequence(&k.held, m)
	case m.Due.After(t.now):
		k.pushLater(m)
		t.alarm.wake(k, m.Due)
	default:
		k.held.push(&m.place, m)
	}
	m.guest = !t.route.flows() && k.flows() && !m.judged() && s.roomForGuest(m, t.route.inquiry.ahead(t)) // it is asked soon
	s.put(k, m)
	t.fallback.offer(t, k)
	if !t.route.flows() {
		t.route.inquiry.line(t, k)
	}
}

// leaveWindow has the messages of k that cannot start now make room in the window for others.
func (k *key) leaveWindow(t *turn) {
	if k.fresh.n+k.returned.n > 0 {
		k.stashWindow(t)
		t.stash.bound(t)
	}
}

// stashWindow moves what k has in the window to the stash, because it will not start soon.
func (k *key) stashWindow(t *turn) {
	for _, line := range []*list[Message]{&k.returned, &k.fresh} {
		for m := line.first(); m != nil; m = line.first() {
			t.take(k, m)
			t.stash.push(t, k, m)
		}
	}
}

// release moves messages of k to the window that are here for the first time and waited for the route alone, so that they are not
// behind those that come back. With limits that have per they stay, because in the window many of one value would stand before the others; they
// have their turns from the stash (newHeld). The messages of an ordered key stay, too, unless all of them can go: they are in one line.
func (s *stash) release(t *turn, k *key) {
	if !k.flows() || k.flow.ramp > 0 || t.limits != nil && t.limits.Also != nil {
		return
	}
	if t.opts.Ordered {
		for m := range k.held.all() {
			if !m.isNew() || t.order.blocked(k, m) {
				return
			}
		}
	}
	for m := range k.held.all() {
		if m.isNew() {
			t.take(k, m)
			t.window.enter(t, k, m)
		}
	}
}

// newHeld is the next message in the stash of a key that flows, if it is here for the first time and waited for its route alone.
func (k *key) newHeld() *Message {
	if m := k.held.first(); m != nil && m.isNew() && k.flows() && k.flow.ramp == 0 {
		return m
	}
	return nil
}

// isNew tells whether m is here for the first time.
func (m *Message) isNew() bool { return m.Returns == 0 && !m.judged() }
