package supervisor

import "time"

// startAll starts what may start. While the route flows it wakes one goroutine, which takes a message and wakes the next
// one before it runs: handlers that return at once keep few goroutines busy, and those that block get one each.
func (g *Group) startAll(now time.Time) {
	if g.route.state != Flowing {
		for r := g.next(now); r != nil; r = g.next(now) {
			g.goes.Add(1)
			go g.work(r)
		}
		return
	}
	if g.waking || g.ready[0].len()+g.ready[1].len() == 0 && !g.roomForCrowded() || g.busy() >= g.slots() || g.standsStill() {
		return
	}
	g.waking = true
	g.goes.Add(1)
	go g.awake()
}

// awake takes the first message of a goroutine.
func (g *Group) awake() {
	now := g.lock()
	g.waking = false
	r := g.next(now)
	if r != nil {
		g.startAll(now)
	}
	g.mu.Unlock()
	if r == nil {
		g.leave()
		return
	}
	g.work(r)
}

// standsStill tells whether nothing may start, whatever waits.
func (g *Group) standsStill() bool {
	return g.closing || g.paused || g.held
}

// leave is the end of a goroutine that Close waits for.
func (g *Group) leave() { g.goes.Done() }

// next takes the message that is to start now, and a slot for it; nil when there is none. Keys take turns, and so do
// first deliveries and those that were here before.
func (g *Group) next(now time.Time) *run {
	if g.standsStill() {
		return nil
	}
	switch g.route.state {
	case Waiting:
		return nil
	case Probing:
		return g.startRouteProbe(now)
	}
	for side := g.turn; g.busy() < g.slots(); {
		if g.roomForCrowded() {
			k := g.crowded.pop()
			k.crowded = false
			g.makeReady(k)
		}
		q := &g.ready[side]
		if q.len() == 0 {
			side = 1 - side
			if q = &g.ready[side]; q.len() == 0 {
				return nil
			}
		}
		k := q.pop()
		k.queued[side] = false
		m := g.choose(k, side, now)
		if m != nil && g.apart(k, m) {
			continue
		}
		if m != nil {
			g.turn = 1 - side
			r := g.start(k, m, now)
			g.makeReady(k)
			return r
		}
		// k is queued again when what keeps it from starting changes. If it was its turn for a child, it is another's now.
		if g.orphans.len() > 0 && g.roomForChild() {
			g.adopt()
		}
	}
	return nil
}

// busy counts the slots in use.
func (g *Group) busy() int { return g.running.n + g.overdue.n + len(g.births) }

// slots is how many messages may run at once now: fewer than Concurrency while the route recovers.
func (g *Group) slots() int {
	if g.route.ramp > 0 {
		return min(g.route.ramp+g.route.old, g.opts.Concurrency)
	}
	return g.opts.Concurrency
}

// sharesWithin is how long a key remembers that it is not alone on the route.
const sharesWithin = 10 * time.Second

// limit is how many slots k may hold now.
func (g *Group) limit(k *key, now time.Time) int {
	if k.failures > 0 && now.Sub(k.failedAt) >= g.cfg.Window {
		k.failures, k.several = 0, false
	}
	if g.opts.Ordered {
		return 1
	}
	// Runs of earlier children were cancelled. Whether they heed it must not keep the fresh one from its probe.
	one := k.stale + 1
	if k.failures > 0 || k.state == Probing {
		return one
	}
	n := g.opts.Concurrency
	switch {
	case g.recent.others(k.name, now, sharesWithin):
		n /= 2
	case g.recent.several:
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
func (g *Group) lastSlots() int { return max(1, g.slots()/64) }

// mayCrowd tells whether k, which may hold more slots by itself, would take one of the last.
func (g *Group) mayCrowd(k *key, now time.Time) bool {
	return k.runs > 0 && g.slots()-g.busy() <= g.lastSlots() && k.state == Flowing && g.recent.others(k.name, now, sharesWithin)
}

// roomForCrowded tells whether a key that was kept from the last slots may try again: others were freed.
func (g *Group) roomForCrowded() bool {
	return g.crowded.len() > 0 && g.slots()-g.busy() > g.lastSlots()
}

// full tells whether k holds as many slots as it may now.
func (g *Group) full(k *key, now time.Time) bool {
	return k.runs >= g.limit(k, now) || g.mayCrowd(k, now)
}

// choose picks the message of k that starts now, if one may.
func (g *Group) choose(k *key, side int, now time.Time) *Message {
	if g.keys[k.name] != k || k.runs >= g.limit(k, now) {
		return nil
	}
	if g.mayCrowd(k, now) {
		if !k.crowded { // the end of a run of another key lets it go on, too
			k.crowded = true
			g.crowded.push(k)
		}
		return nil
	}
	var m *Message
	switch {
	case k.state == Probing:
		m = g.chooseProbe(k, now)
	case k.state != Flowing:
	case g.opts.Ordered:
		m = g.head(k, now)
	case side == 0:
		m = k.fresh.first
	case k.stash.n > 0:
		m = k.stash.first
	default:
		m = k.due.first
	}
	switch {
	case m == nil:
		g.mayRetire(k, now)
	case m.judged() && g.enoughRetries():
		g.retrying.hold(k)
		return nil
	case k.child == nil:
		if g.make(k); k.child == nil {
			return nil // it is being made
		}
	}
	return m
}

// mayProbe tells whether k, which is probing, may start its probe now.
func (g *Group) mayProbe(k *key, now time.Time) bool {
	// The grace begins with the child.
	grace := k.child != nil && now.Before(k.until)
	alone := *g.cfg.ForwardDuringGrace && k.stash.n == 1 && k.stash.first.arrived.After(k.since)
	return k.probe == nil && (!grace || alone)
}

// chooseProbe picks in turn a message that nobody has judged yet and one that failed before, or messages that can never
// succeed would be every probe.
func (g *Group) chooseProbe(k *key, now time.Time) *Message {
	if !g.mayProbe(k, now) {
		return nil
	}
	if g.opts.Ordered {
		return g.head(k, now)
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
func (g *Group) start(k *key, m *Message, now time.Time) *run {
	g.take(k, m)
	r := m.newRun()
	r.k, r.m, r.child, r.number, r.deadline = k, m, k.child, m.Attempts+1, now.Add(g.opts.Timeout)
	if k.state == Probing {
		r.probe, k.probe, k.oldNext = true, r, !m.judged()
	}
	r.epoch = g.route.epoch
	if r.first = !m.judged(); !r.first {
		g.retrying.runs++
	}
	k.runs++
	r.child.hold(g, k)
	if g.preparer(m) != nil {
		r.deadline = r.deadline.Add(preparing)
	}
	g.running.push(r)
	g.arm(r.deadline)
	g.counts.Started++
	return r
}

// take removes m from the window or the stash.
func (g *Group) take(k *key, m *Message) {
	in := m.in
	in.remove(m)
	if in == &k.fresh || in == &k.due {
		g.window.add(m, -1)
		if m.Alone {
			g.alones.add(m, -1)
		}
		return
	}
	g.stash.add(m, -1)
	if m.judged() {
		g.failing.add(m, -1)
		if k.failing--; k.failing == 0 {
			g.failingKeys.remove(k)
		}
	}
	if k.stash.n+k.later.n == 0 {
		g.stashed.remove(k)
	}
}
