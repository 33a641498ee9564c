package supervisor

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/internal/teeth"
)

// round is one try of a waiting route to find out whether all is well again. It asks messages that nobody has judged yet,
// as many as the round is large, and one of those that failed: asking only these, a few dozen messages that can never
// succeed would keep all others waiting for as long as they are here. The first success lets the route flow. Each round
// that fails makes the next one twice as large, up to half of the slots, so that many bad ones do not stand before a good
// one for long.
type round struct {
	number  int
	began   time.Time // with its first probe
	size    int       // messages that nobody has judged
	asked   int       // of these
	failed  bool
	again   bool // one that had failed before was asked
	running int  // probes of this round
	newest  bool // the next one is the newest, not the oldest
}

const (
	// probeOpen is how long a round takes more messages, although others have failed: they may be on their way.
	probeOpen = 250 * time.Millisecond
	// probePatience is how long the probes of a round may take. Those that take longer go on, and count when they succeed.
	probePatience = 2 * time.Second
)

func (t *turn) beginRound() {
	last := t.route.round
	t.route.round = round{
		number: last.number + 1, size: max(1, min(2*last.size, t.opts.Concurrency/2)), newest: last.newest,
	}
}

// open tells whether the round takes more messages.
func (rd *round) open(now time.Time) bool {
	return rd.began.IsZero() || !rd.failed || now.Before(rd.began.Add(probeOpen))
}

// wants tells whether the round still asks messages of a kind.
func (rd *round) wants(fresh bool, now time.Time) bool {
	return rd.open(now) && (fresh && rd.asked < rd.size || !fresh && !rd.again)
}

// over tells whether the round has failed, or if not, when to look again; the zero time is never.
func (rd *round) over(now time.Time) (bool, time.Time) {
	switch {
	case rd.began.IsZero():
		return false, time.Time{}
	case rd.running > 0:
		end := rd.began.Add(probePatience)
		return !now.Before(end), end
	case !rd.failed:
		return false, time.Time{}
	}
	return rd.asked >= rd.size || !rd.open(now), rd.began.Add(probeOpen)
}

// startRouteProbe starts the next message of the round, if there is one.
func (t *turn) startRouteProbe() *run {
	rs := &t.route
	rd := &rs.round
	if t.busy() >= t.slots() || rs.probes >= max(1, t.opts.Concurrency/2) {
		return nil
	}
	var k *key
	var m *Message
	fresh := rd.wants(true, t.now) && !teeth.Fresh()
	if fresh {
		k, m = t.chooseRouteProbe(true)
	}
	if m == nil && rd.wants(false, t.now) {
		fresh = false
		k, m = t.chooseRouteProbe(false)
	}
	if m == nil || !t.held && t.apart(k, m) {
		return nil
	}
	if k.child == nil {
		if t.make(k); k.child == nil {
			return nil // it is being made
		}
	}
	if fresh {
		rd.asked++
		rd.newest = !rd.newest
	} else {
		rd.again = true
	}
	r := t.start(k, m)
	if rd.began.IsZero() {
		rd.began = t.now
	}
	rd.running++
	rs.probes++
	t.arm(rd.began.Add(probePatience))
	r.routeProbe = rd.number
	return r
}

// chooseRouteProbe picks one message over all keys, of those that nobody has judged or of the others; nil when none may
// start. When there are as many children as there may be, none of them idle, it is a message of a key that has one: its
// child waits for nothing else.
func (t *turn) chooseRouteProbe(fresh bool) (of *key, best *Message) {
	var owner *key
	var owned *Message
	for k := t.stashed.first; k != nil; k = k.lists[t.stashed.id].next {
		m := t.candidate(k, fresh)
		if m == nil {
			t.mayRetire(k)
			continue
		}
		if best == nil || t.better(k, m, of, best, fresh) {
			of, best = k, m
		}
		if k.child != nil && (owned == nil || t.better(k, m, owner, owned, fresh)) {
			owner, owned = k, m
		}
	}
	if best != nil && of.child == nil && of.birth == nil && owned != nil && !t.roomForChild() {
		return owner, owned
	}
	return of, best
}

// candidate is the message of k that may be a probe of the route.
func (t *turn) candidate(k *key, fresh bool) *Message {
	m := t.firstCandidate(k, fresh)
	switch {
	case m == nil, k.child == nil && k.birth != nil: // nobody waits for a factory
		return nil
	case t.held && !m.Alone, !t.held && m.Alone && t.opts.Alone != nil && t.busy() > 0:
		// What must run alone is asked when nothing else can be: all routes of the process stand still for it.
		return nil
	}
	return m
}

func (t *turn) firstCandidate(k *key, fresh bool) *Message {
	switch {
	case k.runs >= t.limit(k): // of before the wait
		return nil
	case k.state == Probing:
		if !t.mayProbe(k) {
			return nil
		}
	case k.state != Flowing:
		return nil
	}
	if t.opts.Ordered {
		if m := t.head(k); m != nil && m.judged() != fresh {
			return m
		}
		return nil
	}
	return k.askable(fresh)
}

// better tells whether a, of the key x, makes the better probe than b, of the key y.
func (t *turn) better(x *key, a *Message, y *key, b *Message, fresh bool) bool {
	if !fresh {
		return before(a, b)
	}
	if p, q := t.route.evidence.good.has(x.name), t.route.evidence.good.has(y.name); p != q {
		return p
	}
	return a.Sequence < b.Sequence != t.route.round.newest
}

// endProbe counts a probe of the route out, when its run is over.
func (t *turn) endProbe(r *run) {
	if r.routeProbe == 0 {
		return
	}
	rs := &t.route
	rs.probes--
	if rs.state == Probing && r.routeProbe == rs.round.number {
		rs.round.running--
	}
}

// roundFailed takes in the failure of a probe of the route.
func (t *turn) roundFailed(r *run, err error) {
	rs := &t.route
	if rs.state != Probing || r.routeProbe != rs.round.number {
		return
	}
	rs.lastErr, rs.round.failed = err, true
}

// endRound comes after what the end of r means was decided.
func (t *turn) endRound(r *run, told bool) {
	rs := &t.route
	if r.routeProbe == 0 || rs.state != Probing || r.routeProbe != rs.round.number {
		return
	}
	switch { // instead of a probe that told nothing another one may be asked
	case told:
	case r.first:
		rs.round.asked--
	default:
		rs.round.again = false
	}
	if rs.round.running == 0 && !rs.round.failed {
		rs.round.began = time.Time{} // nothing was told
	}
	t.attendRound()
}

// attendRound ends the round if it failed, or asks for more messages.
func (t *turn) attendRound() {
	rs := &t.route
	switch over, next := rs.round.over(t.now); {
	case over && rs.round.running > 0:
		t.routeAgain(fmt.Sprintf("the probes have not returned for %v", probePatience))
	case over:
		t.routeAgain(fmt.Sprintf("the probe failed: %v", rs.lastErr))
	case !next.IsZero():
		t.arm(next)
		t.call(t.opts.More)
	}
}
