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

func (g *Group) beginRound() {
	last := g.route.round
	g.route.round = round{
		number: last.number + 1, size: max(1, min(2*last.size, g.opts.Concurrency/2)), newest: last.newest,
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
func (g *Group) startRouteProbe(now time.Time) *run {
	rs := &g.route
	rd := &rs.round
	if g.busy() >= g.slots() || rs.probes >= max(1, g.opts.Concurrency/2) {
		return nil
	}
	var k *key
	var m *Message
	fresh := rd.wants(true, now) && !teeth.Fresh()
	if fresh {
		k, m = g.chooseRouteProbe(true, now)
	}
	if m == nil && rd.wants(false, now) {
		fresh = false
		k, m = g.chooseRouteProbe(false, now)
	}
	if m == nil || !g.held && g.apart(k, m) {
		return nil
	}
	if k.child == nil {
		if g.make(k); k.child == nil {
			return nil // it is being made
		}
	}
	if fresh {
		rd.asked++
		rd.newest = !rd.newest
	} else {
		rd.again = true
	}
	r := g.start(k, m, now)
	if rd.began.IsZero() {
		rd.began = now
	}
	rd.running++
	rs.probes++
	g.arm(rd.began.Add(probePatience))
	r.routeProbe = rd.number
	return r
}

// chooseRouteProbe picks one message over all keys, of those that nobody has judged or of the others; nil when none may
// start. When there are as many children as there may be, none of them idle, it is a message of a key that has one: its
// child waits for nothing else.
func (g *Group) chooseRouteProbe(fresh bool, now time.Time) (of *key, best *Message) {
	var owner *key
	var owned *Message
	for k := g.stashed.first; k != nil; k = k.lists[g.stashed.id].next {
		m := g.candidate(k, fresh, now)
		if m == nil {
			g.mayRetire(k, now)
			continue
		}
		if best == nil || g.better(k, m, of, best, fresh) {
			of, best = k, m
		}
		if k.child != nil && (owned == nil || g.better(k, m, owner, owned, fresh)) {
			owner, owned = k, m
		}
	}
	if best != nil && of.child == nil && of.birth == nil && owned != nil && !g.roomForChild() {
		return owner, owned
	}
	return of, best
}

// candidate is the message of k that may be a probe of the route.
func (g *Group) candidate(k *key, fresh bool, now time.Time) *Message {
	m := g.firstCandidate(k, fresh, now)
	switch {
	case m == nil, k.child == nil && k.birth != nil: // nobody waits for a factory
		return nil
	case g.held && !m.Alone, !g.held && m.Alone && g.opts.Alone != nil && g.busy() > 0:
		// What must run alone is asked when nothing else can be: all routes of the process stand still for it.
		return nil
	}
	return m
}

func (g *Group) firstCandidate(k *key, fresh bool, now time.Time) *Message {
	switch {
	case k.runs >= g.limit(k, now): // of before the wait
		return nil
	case k.state == Probing:
		if !g.mayProbe(k, now) {
			return nil
		}
	case k.state != Flowing:
		return nil
	}
	if g.opts.Ordered {
		if m := g.head(k, now); m != nil && m.judged() != fresh {
			return m
		}
		return nil
	}
	return k.askable(fresh)
}

// better tells whether a, of the key x, makes the better probe than b, of the key y.
func (g *Group) better(x *key, a *Message, y *key, b *Message, fresh bool) bool {
	if !fresh {
		return before(a, b)
	}
	if p, q := g.route.evidence.good.has(x.name), g.route.evidence.good.has(y.name); p != q {
		return p
	}
	return a.Sequence < b.Sequence != g.route.round.newest
}

// endProbe counts a probe of the route out, when its run is over.
func (g *Group) endProbe(r *run) {
	if r.routeProbe == 0 {
		return
	}
	rs := &g.route
	rs.probes--
	if rs.state == Probing && r.routeProbe == rs.round.number {
		rs.round.running--
	}
}

// roundFailed takes in the failure of a probe of the route.
func (g *Group) roundFailed(r *run, err error) {
	rs := &g.route
	if rs.state != Probing || r.routeProbe != rs.round.number {
		return
	}
	rs.lastErr, rs.round.failed = err, true
}

// endRound comes after what the end of r means was decided.
func (g *Group) endRound(r *run, told bool, now time.Time, fx *effects) {
	rs := &g.route
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
	g.attendRound(now, fx)
}

// attendRound ends the round if it failed, or asks for more messages.
func (g *Group) attendRound(now time.Time, fx *effects) {
	rs := &g.route
	switch over, next := rs.round.over(now); {
	case over && rs.round.running > 0:
		g.routeAgain(fmt.Sprintf("the probes have not returned for %v", probePatience), now, fx)
	case over:
		g.routeAgain(fmt.Sprintf("the probe failed: %v", rs.lastErr), now, fx)
	case !next.IsZero():
		g.arm(next)
		fx.calls = append(fx.calls, g.opts.More)
	}
}
