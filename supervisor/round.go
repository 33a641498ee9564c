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
	number  int32
	began   time.Time // with its first probe
	size    int       // messages that nobody has judged
	asked   int       // of these
	again   bool      // one that had failed before was asked
	failed  bool
	trial   bool // of an operator: one message, for however long it runs
	running int  // probes of this round
}

// rounds is what a round knows of those before it.
type rounds struct {
	number int32
	size   int
	newest bool // the next message that nobody has judged is the newest, not the oldest
}

const (
	// probeOpen is how long a round takes more messages, although others have failed: they may be on their way.
	probeOpen = 250 * time.Millisecond
	// probePatience is how long the probes of a round may take. Those that take longer go on, and count when they succeed.
	probePatience = 2 * time.Second
)

// next is a round after the others.
func (s *rounds) next(concurrency int) round {
	s.number++
	s.size = max(1, min(2*s.size, concurrency/2))
	return round{number: s.number, size: s.size}
}

// open tells whether the round takes more messages.
func (rd *round) open(now time.Time) bool {
	return rd.began.IsZero() || !rd.failed || now.Before(rd.began.Add(probeOpen))
}

// wants tells whether the round still asks messages with such a past.
func (rd *round) wants(with past, now time.Time) bool {
	if !rd.open(now) {
		return false
	}
	switch {
	case rd.trial:
		return rd.asked == 0 && !rd.again
	case with == unjudged:
		return rd.asked < rd.size
	}
	return !rd.again
}

// over tells whether the round has failed, or if not, when to look again; the zero time is never.
func (rd *round) over(now time.Time) (bool, time.Time) {
	switch {
	case rd.began.IsZero():
		return false, time.Time{}
	case rd.running > 0 && rd.trial:
		return false, time.Time{} // its answer decides
	case rd.running > 0:
		end := rd.began.Add(probePatience)
		return !now.Before(end), end
	case !rd.failed:
		return false, time.Time{}
	}
	return rd.asked >= rd.size || !rd.open(now), rd.began.Add(probeOpen)
}

// retract is for a probe that told nothing: another one may be asked instead.
func (rd *round) retract(of past) {
	if of == unjudged {
		rd.asked--
	} else {
		rd.again = false
	}
}

// routeProbing: the route asks a round of messages whether all is well again.
type routeProbing struct{ round }

func (*routeProbing) is() State { return Probing }

// beginRound asks anew, whatever an earlier round told.
func (t *turn) beginRound(why string) {
	s := &routeProbing{t.route.rounds.next(t.opts.Concurrency)}
	s.trial = t.route.trial
	if t.route.is() == Probing {
		t.route.state = s
		return
	}
	t.moveRoute(s, why, 0)
}

// roundOf is the round that r is a probe of, if that is not over.
func (t *turn) roundOf(r *run) *routeProbing {
	s, ok := t.route.state.(*routeProbing)
	if !ok || r.round == 0 || r.round != s.number {
		return nil
	}
	return s
}

func (s *routeProbing) accepts(t *turn, k *key, m *Message) bool {
	if !s.wants(m.past(), t.now) {
		return false
	}
	of, other := t.chooseRouteProbe(m.past())
	return other == nil || t.opts.Ordered && of == k && m.Sequence < other.Sequence // other would have to wait for m
}

// failed takes in the failure of a probe of the route.
func (*routeProbing) failed(t *turn, r *run, err error) {
	if s := t.roundOf(r); s != nil {
		t.route.lastErr, s.round.failed = err, true
	}
}

func (*routeProbing) answered(t *turn, r *run) {
	if r.round > 0 {
		t.routeFlows("a probe succeeded")
	}
}

// next starts the next message of the round, if there is one.
func (s *routeProbing) next(t *turn) *run {
	if t.busy() >= t.open() || t.route.probes >= max(1, t.opts.Concurrency/2) {
		return nil
	}
	k, m := s.ready(t)
	if m == nil {
		return nil
	}
	if m.past() == unjudged {
		s.asked++
		t.route.rounds.newest = !t.route.rounds.newest
	} else {
		s.again = true
	}
	r := t.start(k, m)
	if s.began.IsZero() {
		s.began = t.now
	}
	s.running++
	t.route.probes++
	t.alarm.arm(s.began.Add(probePatience))
	r.round = s.number
	return r
}

// ready chooses the next message of the round and takes its places; it returns nil when none can start.
func (s *routeProbing) ready(t *turn) (*key, *Message) {
	for {
		k, m := s.choose(t)
		if m == nil || !t.held && t.apart(k, m) {
			return nil, nil
		}
		if k.child == nil {
			if t.make(k); k.child == nil {
				return nil, nil // it is being made
			}
		}
		full := t.takes(k, m)
		if full == nil {
			return k, m
		}
		if full.Shared() {
			return nil, nil // which no other key gets past; k waits for all of them
		}
		// k is no candidate any more
	}
}

// choose picks the next message of the round.
func (s *routeProbing) choose(t *turn) (k *key, m *Message) {
	if s.wants(unjudged, t.now) && !teeth.Fresh() {
		k, m = t.chooseRouteProbe(unjudged)
	}
	if m == nil && s.wants(failedBefore, t.now) {
		k, m = t.chooseRouteProbe(failedBefore)
	}
	return k, m
}

// chooseRouteProbe picks one message over all keys, of those with such a past; nil when none may start. When there are as
// many children as there may be, none of them idle, it is a message of a key that has one: its child waits for nothing else.
func (t *turn) chooseRouteProbe(with past) (of *key, best *Message) {
	var owner *key
	var owned *Message
	for k := range t.stash.keys.all() {
		m := t.candidate(k, with)
		if m == nil {
			t.mayRetire(k)
			continue
		}
		if best == nil || t.better(k, m, of, best, with) {
			of, best = k, m
		}
		if k.child != nil && (owned == nil || t.better(k, m, owner, owned, with)) {
			owner, owned = k, m
		}
	}
	if best != nil && of.child == nil && of.birth == nil && owned != nil && !t.nursery.room() {
		return owner, owned
	}
	return of, best
}

// candidate is the message of k that may be a probe of the route.
func (t *turn) candidate(k *key, with past) *Message {
	if k.runs >= t.limit(k) || k.waitsForLimit() { // of before the wait
		return nil
	}
	m := k.state.candidate(t, k, with)
	switch {
	case m == nil, k.child == nil && k.birth != nil: // nobody waits for a factory
		return nil
	case t.held && !m.Alone, !t.held && m.Alone && t.opts.Alone != nil && t.busy() > 0:
		// A message that must run alone is probed only when no other can be, because all routes of the process wait meanwhile.
		return nil
	}
	return m
}

// better tells whether a, of the key x, makes the better probe than b, of the key y.
func (t *turn) better(x *key, a *Message, y *key, b *Message, with past) bool {
	if with == failedBefore {
		return before(a, b)
	}
	good := &t.route.evidence.good
	if p, q := good.has(x.name), good.has(y.name); p != q {
		return p
	}
	return a.Sequence < b.Sequence != t.route.rounds.newest
}

// endProbe counts a probe of the route out, when its run is over.
func (t *turn) endProbe(r *run) {
	if r.round == 0 {
		return
	}
	t.route.probes--
	if s := t.roundOf(r); s != nil {
		s.running--
	}
}

// endRound comes after what the end of r means was decided. What it told is an answer, a failure, or nothing.
func (t *turn) endRound(r *run, what telling) {
	s := t.roundOf(r)
	if s == nil {
		return
	}
	if what == nothing {
		s.retract(r.past)
	}
	if s.running == 0 && !s.round.failed {
		s.began = time.Time{} // nothing was told
	}
	s.attend(t)
}

// telling is what the end of a run says of the route.
type telling uint8

const (
	something telling = iota
	nothing           // it was cancelled, put off, or taken away
)

// attend ends the round if it failed, or asks for more messages.
func (s *routeProbing) attend(t *turn) {
	switch over, next := s.over(t.now); {
	case over && s.running > 0:
		t.routeAgain(fmt.Sprintf("the probes have not returned for %v", probePatience))
	case over:
		t.routeAgain(fmt.Sprintf("the probe failed: %v", t.route.lastErr))
	case !next.IsZero():
		t.alarm.arm(next)
		t.call(t.opts.More)
	}
}
