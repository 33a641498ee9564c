package supervisor

import "time"

// Deliver takes messages in. Each will be settled once: when it was handled, when it has to wait elsewhere, or at the end.
func (g *Group) Deliver(messages ...*Message) {
	t := g.lock()
	for _, m := range messages {
		m.numbering = t.order.numbering
		t.deliver(m)
	}
	t.spill()
	t.startAll()
	t.makeWay()
	t.unlock()
}

func (t *turn) deliver(m *Message) {
	m.arrived = t.now
	if t.closing {
		t.giveBack(m, time.Time{}, "shutting down", nil)
		return
	}
	k := t.keys[m.Key]
	if k == nil {
		k = t.newKey(m.Key)
	}
	k.outside.back(m.Sequence)
	m.called = t.aside.back(asideID{m.Replayed, m.Sequence})
	t.admit(k, m)
	t.attend(k)
}

// admit finds the place of a message that arrived.
func (t *turn) admit(k *key, m *Message) {
	switch {
	case m.spent(t.opts) && t.route.doubt && t.fallback.Exhausted && !k.gaveUp():
		// Nobody is asked for a last resort now. It may be what the route asks, for others of its key may wait behind it.
	case m.spent(t.opts):
		t.dies(k, m, Outcome{Action: DeadLetter, Reason: ReasonExhausted, Err: m.LastErr})
		return
	case m.expired(t.opts, t.now):
		t.dies(k, m, Outcome{Action: DeadLetter, Reason: ReasonExpired, Err: m.LastErr})
		return
	}
	if t.paused {
		t.turnAwayPaused(k, m)
		return
	}
	t.slots.recent.saw(m.Key, t.now)
	if !m.judged() && k.flows() {
		t.route.hurry(m.Key)
	}
	if k.is(Suspended) {
		t.refuse(k, m)
		return
	}
	early := m.Due.After(t.now) && !t.opts.Ordered
	if !early && t.route.waits(k) && !t.stashes(k, m) && !t.isProbe(k, m) {
		t.turnAway(k, m)
		return
	}
	t.touch(k) // not for a message that goes away: it would keep an idle child in the place of one that is needed
	switch {
	case early:
		t.hold(k, m)
	case t.route.waits(k), t.opts.Ordered && (k.held.n > 0 || t.order.blocked(k, m)):
		t.putStash(k, m)
		t.boundStash()
	default:
		if b := t.standsAt(k, m); b != nil {
			t.standAt(b, k, m)
			return
		}
		t.putWindow(k, m)
	}
}

// stashes tells whether a message of k that has to wait is stashed: as forward says, or because it may soon be asked.
func (t *turn) stashes(k *key, m *Message) bool {
	return t.cfg.Forward == ForwardStash || t.cfg.Forward == ForwardGiveBack && k.flows() && !m.judged() && !t.oneByOne()
}

// waits tells whether a message of k that arrives now has to wait for its key or its route. An operator's pause is no
// such wait: nothing failed, and forward does not apply to it.
func (s *route) waits(k *key) bool { return !k.flows() || !s.flows() }

// isProbe tells whether a message that arrives now is what k, the route, or both wait for to probe with. Without it, no
// probe would ever be found where forward keeps no stash.
func (t *turn) isProbe(k *key, m *Message) bool {
	if t.opts.Ordered && t.order.blocked(k, m) {
		return false // it could not start, and would keep out the one that can
	}
	return k.state.accepts(t, k, m) && t.route.state.accepts(t, k, m)
}

// spent tells whether m has no attempts left.
func (m *Message) spent(opts *Options) bool {
	return opts.MaxAttempts > 0 && m.Attempts >= opts.MaxAttempts
}

// expired tells whether m failed for the first time so long ago that it is given up.
func (m *Message) expired(opts *Options, now time.Time) bool {
	return opts.MaxAge > 0 && !m.FirstFailure.IsZero() && now.Sub(m.FirstFailure) > opts.MaxAge
}

// hold keeps a message that came back before its own delay was over, or gives it back for what is left.
func (t *turn) hold(k *key, m *Message) {
	if m.Due.Sub(t.now) > holdEarly || t.stash.neverFits(m) {
		t.giveBack(m, m.Due, "came back early", nil)
		return
	}
	k.pushLater(m)
	t.stash.put(k, m)
	t.boundStash()
}

// holdEarly is how early a message may come back and be held; the server restarts with delays cut to whole seconds.
const holdEarly = 2 * time.Second

// putWindow queues a message that may start at once.
func (t *turn) putWindow(k *key, m *Message) {
	switch {
	case t.opts.Ordered:
		k.pushBySequence(&k.fresh, m)
	case m.Attempts > 0 || m.Returns > 0:
		k.returned.push(&m.place, m)
	default:
		k.fresh.push(&m.place, m)
	}
	t.window.put(m)
}

// take removes m from the window or the stash.
func (t *turn) take(k *key, m *Message) {
	in := m.place.in
	in.remove(&m.place)
	if in == &k.fresh || in == &k.returned {
		t.window.take(m)
	} else {
		t.stash.take(k, m)
	}
}

// makeReady queues k for a slot if it has something to start.
func (t *turn) makeReady(k *key) {
	if !t.route.flows() {
		t.line(k) // routeFlows does the rest
		t.aside.offerShelf(k.name)
		return
	}
	t.aside.offerShelf(k.name)
	t.slots.queue(k)
}
