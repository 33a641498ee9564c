package supervise

import (
	"time"

	"github.com/relaymq/relay/supervisor"
)

// Deliver takes messages in. Each will be settled once: when it was handled, when it has to wait elsewhere, or at the end.
func (g *Group) Deliver(messages ...*Message) {
	t := g.lock()
	for _, m := range messages {
		m.numbering = t.order.numbering
		t.deliver(m)
	}
	t.window.spill(t)
	t.startAll()
	t.window.makeWay(t)
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
	expected := k.outside.back(m.Sequence)
	m.called = t.aside.back(asideID{m.Replayed, m.Sequence}) || expected
	t.admit(k, m)
	k.attend(t)
}

// admit finds the place of a message that arrived.
func (t *turn) admit(k *key, m *Message) {
	switch {
	case m.spent(t.opts) && t.route.doubt && t.fallback.Exhausted && !k.gaveUp():
		// Nobody is asked for a last resort now. It may be what the route asks, for others of its key may wait behind it.
	case m.spent(t.opts):
		t.fallback.dies(t, k, m, Outcome{Action: DeadLetter, Reason: ReasonExhausted, Err: m.LastErr})
		return
	case m.expired(t.opts, t.now):
		t.fallback.dies(t, k, m, Outcome{Action: DeadLetter, Reason: ReasonExpired, Err: m.LastErr})
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
	if !early && t.route.waits(k) && !t.route.stashes(t, k, m) && !t.isProbe(k, m) {
		t.turnAway(k, m)
		return
	}
	k.touch(t) // not for a message that goes away: it would keep an idle child in the place of one that is needed
	switch {
	case early:
		t.stash.holdUntilDue(t, k, m)
	case t.route.waits(k), t.opts.Ordered && (k.held.n > 0 || t.order.blocked(k, m)):
		t.stash.hold(t, k, m)
		t.stash.bound(t)
	default:
		if b := t.limits.standsAt(t, k, m); b != nil {
			t.limits.standAt(t, b, k, m)
			return
		}
		t.window.enter(t, k, m)
	}
}

// stashes tells whether a message of k that has to wait is stashed: as forward says, or because it may soon be asked.
func (s *route) stashes(t *turn, k *key, m *Message) bool {
	return t.cfg.Forward == forwardStash || t.cfg.Forward == supervisor.ForwardGiveBack && k.flows() && !m.judged() && !s.inquiry.oneByOne(t)
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

// holdUntilDue keeps a message that came back before its own delay was over, or gives it back for what is left.
func (s *stash) holdUntilDue(t *turn, k *key, m *Message) {
	if m.Due.Sub(t.now) > holdEarly || s.neverFits(m) {
		t.giveBack(m, m.Due, "came back early", nil)
		return
	}
	k.pushLater(m)
	s.put(k, m)
	s.bound(t)
}

// holdEarly is how early a message may come back and be held; the server restarts with delays cut to whole seconds.
const holdEarly = 2 * time.Second

// enter queues a message that may start at once.
func (w *window) enter(t *turn, k *key, m *Message) {
	if m.Returns > 0 && !m.called && !m.judged() && (!t.opts.Ordered || k.messages() == 0) && t.slots.ready[returned].len() >= wideWindow && w.wary(t) {
		t.aside.putOn(t, &t.aside.fresh, k, m, t.aside.until(m, t.route.waitOf(k)), nearlyAllFailed, k.lastErr)
		return
	}
	switch {
	case t.opts.Ordered:
		k.pushBySequence(&k.fresh, m)
	case m.Attempts > 0 || m.Returns > 0:
		k.returned.push(&m.place, m)
	default:
		k.fresh.push(&m.place, m)
	}
	w.put(m)
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
		t.route.inquiry.line(t, k) // the route does the rest when it flows
		t.aside.offerShelf(k.name)
		return
	}
	t.aside.offerShelf(k.name)
	t.slots.queue(k)
}
