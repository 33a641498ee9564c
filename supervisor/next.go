package supervisor

import "time"

// startAll starts what may start. While the route flows it wakes one goroutine, which takes a message and wakes the next
// one before it runs: handlers that return at once keep few goroutines busy, and those that block get one each.
func (t *turn) startAll() {
	if t.route.state != Flowing {
		for r := t.next(); r != nil; r = t.next() {
			t.group.goes.Add(1)
			go t.group.work(r)
		}
		return
	}
	if t.waking || t.ready[0].len()+t.ready[1].len() == 0 && !t.roomForCrowded() || t.busy() >= t.slots() || t.standsStill() {
		return
	}
	t.waking = true
	t.group.goes.Add(1)
	go t.group.awake()
}

// awake takes the first message of a goroutine.
func (g *Group) awake() {
	t := g.lock()
	t.waking = false
	r := t.next()
	if r != nil {
		t.startAll()
	}
	t.unlock()
	if r == nil {
		g.leave()
		return
	}
	g.work(r)
}

// standsStill tells whether nothing may start, whatever waits.
func (t *turn) standsStill() bool {
	return t.closing || t.paused || t.held
}

// leave is the end of a goroutine that Close waits for.
func (g *Group) leave() { g.goes.Done() }

// next takes the message that is to start now, and a slot for it; nil when there is none. Keys take turns, and so do
// first deliveries and those that were here before.
func (t *turn) next() *run {
	if t.standsStill() {
		return nil
	}
	switch t.route.state {
	case Waiting:
		return nil
	case Probing:
		return t.startRouteProbe()
	}
	for side := t.turn; t.busy() < t.slots(); {
		if t.roomForCrowded() {
			k := t.crowded.pop()
			k.crowded = false
			t.makeReady(k)
		}
		q := &t.ready[side]
		if q.len() == 0 {
			side = 1 - side
			if q = &t.ready[side]; q.len() == 0 {
				return nil
			}
		}
		k := q.pop()
		k.queued[side] = false
		m := t.choose(k, side)
		if m != nil && t.apart(k, m) {
			continue
		}
		if m != nil {
			t.turn = 1 - side
			r := t.start(k, m)
			t.makeReady(k)
			return r
		}
		// k is queued again when what keeps it from starting changes. If it was its turn for a child, it is another's now.
		if t.orphans.len() > 0 && t.roomForChild() {
			t.adopt()
		}
	}
	return nil
}

// busy counts the slots in use.
func (t *turn) busy() int { return t.running.n + t.overdue.n + len(t.births) }

// slots is how many messages may run at once now: fewer than Concurrency while the route recovers.
func (t *turn) slots() int {
	if t.route.ramp > 0 {
		return min(t.route.ramp+t.route.old, t.opts.Concurrency)
	}
	return t.opts.Concurrency
}

// sharesWithin is how long a key remembers that it is not alone on the route.
const sharesWithin = 10 * time.Second

// limit is how many slots k may hold now.
func (t *turn) limit(k *key) int {
	if k.failures > 0 && t.now.Sub(k.failedAt) >= t.cfg.Window {
		k.failures, k.several = 0, false
	}
	if t.opts.Ordered {
		return 1
	}
	// Runs of earlier children were cancelled. Whether they heed it must not keep the fresh one from its probe.
	one := k.stale + 1
	if k.failures > 0 || k.state == Probing {
		return one
	}
	n := t.opts.Concurrency
	switch {
	case t.recent.others(k.name, t.now, sharesWithin):
		n /= 2
	case t.recent.several:
		// It is alone now, but one slot stays free: its handlers might hang just when another key has a message.
		n--
	}
	if k.ramp > 0 {
		n = min(n, k.stale+k.ramp)
	}
	return max(n, one)
}

// lastSlots is how many slots are left to keys that hold none: one of each 64. Without them two keys whose handlers hang,
// half of the slots each, would have them all. More would cost the few busy keys of a healthy route too much.
func (t *turn) lastSlots() int { return max(1, t.slots()/64) }

// mayCrowd tells whether k, which may hold more slots by itself, would take one of the last.
func (t *turn) mayCrowd(k *key) bool {
	return k.runs > 0 && t.slots()-t.busy() <= t.lastSlots() && k.state == Flowing && t.recent.others(k.name, t.now, sharesWithin)
}

// roomForCrowded tells whether a key that was kept from the last slots may try again: others were freed.
func (t *turn) roomForCrowded() bool {
	return t.crowded.len() > 0 && t.slots()-t.busy() > t.lastSlots()
}

// full tells whether k holds as many slots as it may now.
func (t *turn) full(k *key) bool {
	return k.runs >= t.limit(k) || t.mayCrowd(k)
}

// choose picks the message of k that starts now, if one may.
func (t *turn) choose(k *key, side int) *Message {
	if t.keys[k.name] != k || k.runs >= t.limit(k) {
		return nil
	}
	if t.mayCrowd(k) {
		if !k.crowded { // the end of a run of another key lets it go on, too
			k.crowded = true
			t.crowded.push(k)
		}
		return nil
	}
	var m *Message
	switch {
	case k.state == Probing:
		m = t.chooseProbe(k)
	case k.state != Flowing:
	case t.opts.Ordered:
		m = t.head(k)
	case side == 0:
		m = k.fresh.first
	case k.stash.n > 0:
		m = k.stash.first
	default:
		m = k.due.first
	}
	switch {
	case m == nil:
		t.mayRetire(k)
	case m.judged() && t.enoughRetries():
		t.retrying.hold(k)
		return nil
	case k.child == nil:
		if t.make(k); k.child == nil {
			return nil // it is being made
		}
	}
	return m
}

// mayProbe tells whether k, which is probing, may start its probe now.
func (t *turn) mayProbe(k *key) bool {
	// The grace begins with the child.
	grace := k.child != nil && t.now.Before(k.until)
	alone := *t.cfg.ForwardDuringGrace && k.stash.n == 1 && k.stash.first.arrived.After(k.since)
	return k.probe == nil && (!grace || alone)
}

// chooseProbe picks in turn a message that nobody has judged yet and one that failed before, or messages that can never
// succeed would be every probe.
func (t *turn) chooseProbe(k *key) *Message {
	if !t.mayProbe(k) {
		return nil
	}
	if t.opts.Ordered {
		return t.head(k)
	}
	fresh, old := k.askable(true), k.askable(false)
	if fresh == nil || old != nil && k.oldNext {
		return old
	}
	return fresh
}

// askable is the best probe of those messages of k that nobody has judged, or of those that failed: the one with the fewest
// attempts, then the oldest one. One that failed as a probe may be asked before its own delay is over.
func (k *key) askable(fresh bool) (best *Message) {
	for m := k.stash.first; m != nil; m = m.next {
		if m.judged() != fresh && (best == nil || before(m, best)) {
			best = m
		}
	}
	for m := k.later.first; m != nil && !fresh; m = m.next {
		if m.probes > 0 && (best == nil || before(m, best)) {
			best = m
		}
	}
	return best
}

// before tells whether a makes the better probe.
func before(a, b *Message) bool {
	x, y := a.Attempts+a.probes, b.Attempts+b.probes
	return x < y || x == y && a.Sequence < b.Sequence
}

// start takes m out of where it waits and gives it a slot.
func (t *turn) start(k *key, m *Message) *run {
	t.take(k, m)
	r := m.newRun()
	r.k, r.m, r.child, r.number, r.deadline = k, m, k.child, m.Attempts+1, t.now.Add(t.opts.Timeout)
	if k.state == Probing {
		r.probe, k.probe, k.oldNext = true, r, !m.judged()
	}
	r.epoch = t.route.epoch
	if r.first = !m.judged(); !r.first {
		t.retrying.runs++
	}
	k.runs++
	t.holdChild(r.child, k)
	if t.group.preparer(m) != nil {
		r.deadline = r.deadline.Add(preparing)
	}
	t.running.push(r)
	t.arm(r.deadline)
	t.counts.Started++
	return r
}

// take removes m from the window or the stash.
func (t *turn) take(k *key, m *Message) {
	in := m.in
	in.remove(m)
	if in == &k.fresh || in == &k.due {
		t.window.add(m, -1)
		if m.Alone {
			t.alones.add(m, -1)
		}
		return
	}
	t.stash.add(m, -1)
	if m.judged() {
		t.failing.add(m, -1)
		if k.failing--; k.failing == 0 {
			t.failingKeys.remove(k)
		}
	}
	if k.stash.n+k.later.n == 0 {
		t.stashed.remove(k)
	}
}
