package supervise

import (
	"fmt"
	"math"
	"time"

	"github.com/relaymq/relay/supervisor"

	"github.com/relaymq/relay/internal/teeth"
)

// A route in doubt does not stop: it asks messages whether all is well again, and the first success lets it flow. Two kinds of
// failure are told apart.
//
// An answer that is a failure may be the message's own fault. Then the only way to find those that are well is to ask messages that
// nobody has judged, without a pause, at a pace that begins at firstPace and falls to leastPace while no success comes: the oldest and
// the newest in turn, so that neither what came first nor what comes now waits for all that is between.
//
// No answer says that what all messages depend on is away. Then any message will do, and few are needed: one that nobody has judged
// and one that failed, and a wait before the next two.
//
// No question spends an attempt. Who was asked and failed leaves the way of the others (see aside.go).
const (
	// firstPace is how many messages that nobody has judged are asked in a second at the beginning of a doubt. The pace is half as much
	// after each paceHalf, and leastPace at least.
	firstPace = 400.0
	leastPace = 20.0
	paceHalf  = 25 * time.Second
	// atOnce is how much of a second's pace may be asked at once.
	atOnce = 20 * time.Millisecond
	// muteAfter is after how many messages without an answer in a row nobody answers.
	muteAfter = 8
	// askEvery bounds the wait between two questions while nobody answers, or an operator wants one at a time; judgedEvery that
	// between messages that failed before; rudeEvery that while what answers says that it wants no more, or an operator is careful.
	askEvery    = 2 * time.Second
	judgedEvery = 4 * time.Second
	rudeEvery   = 5 * time.Second
	// probePatience is how long one question at a time may take. It goes on then, and counts when it succeeds.
	probePatience = 2 * time.Second
)

// inquiry is what a route knows of its questions, over all its waits, until it flows.
type inquiry struct {
	number  int32     // of the questions; those of earlier numbers end the doubt when they succeed, and say nothing else
	since   time.Time // when the pace began
	next    time.Time // when the next message may be asked that nobody has judged
	again   time.Time // when the next one may be asked that failed before
	agains  int
	newest  bool // the next message is the newest, not the oldest
	quiet   bool // what answers says that it wants no more
	careful bool // an operator has it ask one message at a time
	asked   int  // since it flowed

	good   list[key] // keys with a message that nobody has judged, of those that succeeded lately
	fresh  list[key] // of the others; the longest there first
	back   list[key] // those whose message came back by itself: it is an old one, whenever it came
	second list[key] // of keys that failed
	judged list[key] // keys with a message that failed before, and may be asked
}

// pace is how many are asked in a second.
func (q *inquiry) pace(now time.Time) float64 {
	if teeth.Pace() {
		return 1e6
	}
	return max(leastPace, firstPace*math.Exp2(-float64(now.Sub(q.since))/float64(paceHalf)))
}

// took notes that a message was asked that nobody has judged.
func (q *inquiry) took(now time.Time) {
	q.asked++
	q.newest = !q.newest
	q.next = later(q.next, now.Add(-atOnce)).Add(time.Duration(float64(time.Second) / q.pace(now)))
}

// restart begins anew with the first pace.
func (q *inquiry) restart(now time.Time) {
	q.since, q.next, q.again, q.agains, q.quiet, q.careful = now, time.Time{}, time.Time{}, 0, false, false
}

// oneByOne tells whether the route asks one message at a time, with waits between. With a fallback that works nobody waits for that.
func (q *inquiry) oneByOne(t *turn) bool {
	s := &t.route
	return s.mute >= muteAfter || s.inquiry.quiet || s.inquiry.careful || t.fallback.Waiting && t.fallback.row < failingAfter
}

// hear notes whether a run got an answer, of whatever kind.
func (s *route) hear(r *run, v Verdict) {
	late := v.Kind == Retry && r.Err() != nil
	if v.Kind == Retry {
		r.k.worked = false
	}
	if r.k.hung = late; late || v.Kind == Retry && (v.NotStarted || v.NoAnswer) {
		s.mute = min(s.mute+1, 2*muteAfter)
	} else {
		s.mute = 0
	}
}

// routeProbing: the route asks.
type routeProbing struct {
	number  int32
	began   time.Time // with the last question; zero: nobody was asked yet
	running int       // questions without an answer
	// While one message is asked at a time:
	asked bool // one that never failed was asked
	again bool // one that failed before was asked
	bad   bool // a question failed
}

func (*routeProbing) is() State { return Probing }

// beginRound asks anew, whatever earlier questions told.
func (s *route) beginRound(why string) {
	q := &s.inquiry
	q.number++
	if q.since.IsZero() {
		q.since = s.now
	}
	next := &routeProbing{number: q.number}
	if s.is() == Probing {
		s.state = next
		return
	}
	s.move(next, why, 0)
}

// wants tells whether a message with such a past may be asked now. If only time keeps it from that, at is when.
func (s *routeProbing) wants(t *turn, with past) (ok bool, at time.Time) {
	q := &t.route.inquiry
	switch {
	case q.careful:
		return !s.asked && !s.again, at
	case t.route.inquiry.oneByOne(t) && with == unjudged:
		return !s.asked, at
	case t.route.inquiry.oneByOne(t):
		return !s.again, at
	case with == unjudged:
		at = q.next
	default:
		at = q.again
	}
	return !t.now.Before(at), at
}

// roundOf is the state that r is a question of, if that is not over.
func (rt *route) roundOf(r *run) *routeProbing {
	s, ok := rt.state.(*routeProbing)
	if !ok || r.round == 0 || r.round != s.number {
		return nil
	}
	return s
}

// accepts tells whether a message that arrives is kept although its route waits and forward keeps no stash: there is not enough at hand
// that could be asked.
func (s *routeProbing) accepts(t *turn, k *key, m *Message) bool {
	if t.route.dropsWhatWaits() {
		ok, _ := s.wants(t, m.past())
		return ok && t.route.mayBeAsked(k, m, 1)
	}
	return t.route.mayBeAsked(k, m, t.route.inquiry.readyToAsk(t, m))
}

// dropsWhatWaits tells whether what cannot start now is dropped.
func (s *route) dropsWhatWaits() bool { return s.cfg.Forward == supervisor.ForwardDrop && !s.doubt }

// readyToAsk is how many messages that nobody has judged are kept at hand when m arrives.
func (q *inquiry) readyToAsk(t *turn, m *Message) int {
	switch {
	case m.called:
		return math.MaxInt // no more are called than are needed
	case q.oneByOne(t) && m.isNew():
		return 2 // it may be the newest; the other one came by itself
	case q.oneByOne(t):
		return 1
	}
	return max(2*t.opts.Concurrency, q.ahead(t))
}

// ahead is how many messages are to be here, or on their way, to keep up with the pace.
func (q *inquiry) ahead(t *turn) int {
	if q.oneByOne(t) {
		return 1
	}
	return max(4, int(q.pace(t.now)/3))
}

// mayBeAsked tells whether fewer than so many are at hand, and whether m could be one of them.
func (s *route) mayBeAsked(k *key, m *Message, most int) bool {
	q := &s.inquiry
	if first := k.held.first(); s.opts.Ordered && first != nil && first.Sequence > m.Sequence {
		return true // it would have to wait for m
	}
	if m.past() == failedBefore {
		return q.judged.n == 0
	}
	have := q.good.n + q.fresh.n + q.back.n
	if k.failures > 0 {
		have += q.second.n // which others do not wait for
	}
	return have < most
}

// failed takes in the failure of a question.
func (*routeProbing) failed(t *turn, r *run, err error) {
	if s := t.route.roundOf(r); s != nil {
		t.route.lastErr, s.bad = err, true
	}
}

func (*routeProbing) answered(t *turn, r *run) { r.probeAnswered(t) }

// probeAnswered lets the route flow when one of its questions succeeded, and the others know.
func (r *run) probeAnswered(t *turn) {
	if r.round > 0 {
		t.route.flow(t, "a probe succeeded")
		t.route.peers.hint(Hint{Kind: ofFlows})
	}
}

// next starts the next message that is to be asked, if there is one.
func (s *routeProbing) next(t *turn) *run {
	if t.slots.busy() >= t.slots.open() || t.route.probes >= max(1, t.opts.Concurrency/2) {
		return nil
	}
	k, m := s.choose(t)
	if m == nil {
		return nil
	}
	q := &t.route.inquiry
	if m.past() == unjudged {
		s.asked = true
		q.took(t.now)
	} else {
		s.again = true
		q.asked++
		q.again = t.now.Add(q.againDelay(t.cfg))
		q.agains++
	}
	switch {
	case !t.route.inquiry.oneByOne(t):
		t.route.hintAsked(m.past())
	case s.began.IsZero():
		t.route.hintQuestion()
	}
	r := t.slots.start(t, k, m)
	t.route.inquiry.line(t, k)
	s.began = t.now
	s.running++
	t.route.probes++
	if t.route.inquiry.oneByOne(t) {
		t.alarm.arm(s.began.Add(probePatience))
	}
	r.round = s.number
	return r
}

// againDelay is the wait between two questions of messages that failed before.
func (q *inquiry) againDelay(cfg *supervisor.Config) time.Duration {
	return min(cfg.Restart.Delay(q.agains), max(judgedEvery, cfg.Restart.Min))
}

// choose picks the next message to be asked, and takes its places.
func (s *routeProbing) choose(t *turn) (*key, *Message) {
	for _, with := range []past{unjudged, failedBefore} {
		if with == unjudged && teeth.Fresh() {
			continue
		}
		ok, at := s.wants(t, with)
		if !ok {
			if !at.IsZero() && t.route.inquiry.askableNow(t, with) != nil {
				t.alarm.arm(at)
			}
			continue
		}
		k, m, stop := t.route.inquiry.pick(t, with)
		if m != nil || stop {
			return k, m
		}
	}
	return nil, nil
}

// pick takes the places of the message of that past which is to be asked next. With stop nothing else may start either.
func (q *inquiry) pick(t *turn, with past) (of *key, m *Message, stop bool) {
	for k := q.askableNow(t, with); k != nil; k = q.askableNow(t, with) {
		m := q.candidate(t, k, with)
		if !t.held && t.slots.apart(k, m) {
			return nil, nil, true
		}
		if k.child == nil {
			if t.nursery.make(t, k); k.child == nil {
				return nil, nil, true // it is being made
			}
		}
		full := t.limits.takes(k, m)
		if full == nil {
			return k, m, false
		}
		if q.line(t, k); full.Shared() {
			return nil, nil, true // which no other key gets past; k waits for all of them
		}
	}
	return nil, nil, false
}

// askableNow is the key whose message of that past is to be asked next; nil when there is none. When there are as many children as
// there may be, none of them idle, it is a key that has one: its child waits for nothing else.
func (q *inquiry) askableNow(t *turn, with past) *key {
	lists := []*list[key]{&q.good, &q.back, &q.fresh, &q.second}
	switch {
	case with == failedBefore:
		lists = []*list[key]{&q.judged}
	case q.newest:
		lists[1], lists[2] = lists[2], lists[1]
	}
	var first *key
	for _, l := range lists {
		keys := l.all()
		if with == unjudged && q.newest {
			keys = l.backward()
		}
		for k := range keys {
			if q.candidate(t, k, with) == nil {
				q.line(t, k) // it is in no list for that past any more
				t.nursery.mayRetire(t, k)
				continue
			}
			if k.child != nil || t.nursery.room() {
				return k
			}
			if first == nil {
				first = k
			}
		}
	}
	return first
}

// candidate is the message of k that may be asked.
func (q *inquiry) candidate(t *turn, k *key, with past) *Message {
	if k.runs >= t.slots.limit(k) || k.waitsForLimit() { // of before the wait
		return nil
	}
	m := k.state.candidate(t, k, with)
	switch {
	case m == nil, k.child == nil && k.birth != nil: // nobody waits for a factory
		return nil
	case t.held && !m.Alone, !t.held && t.opts.runsAlone(m) && t.slots.busy() > 0:
		// A message that must run alone is asked only when no other can be, because all routes of the process wait meanwhile.
		return nil
	}
	return m
}

// hasNewer tells whether the newest message at hand that nobody has judged is newer than that of the sequence, or is it.
func (q *inquiry) hasNewer(t *turn, sequence uint64) bool {
	for _, l := range []*list[key]{&q.good, &q.fresh} {
		if k := l.last(); k != nil {
			if m := q.candidate(t, k, unjudged); m != nil && m.Sequence >= sequence {
				return true
			}
		}
	}
	return false
}

// line puts k in the lists of those that may be asked, or takes it out.
func (q *inquiry) line(t *turn, k *key) {
	var in *list[key]
	var m *Message
	if !k.gone {
		m = q.candidate(t, k, unjudged)
	}
	if m != nil {
		switch {
		case t.route.evidence.good.has(k.name):
			in = &q.good
		case k.failures == 0 && m.Returns > 0 && !m.called:
			in = &q.back
		case k.failures == 0:
			in = &q.fresh
		default:
			in = &q.second
		}
	}
	k.inAsked.moveTo(in, k)
	in = nil
	if !k.gone && q.candidate(t, k, failedBefore) != nil {
		in = &q.judged
	}
	k.inJudged.moveTo(in, k)
}

// unlineAll empties the lists: the route asks nobody any more.
func (s *route) unlineAll() {
	q := &s.inquiry
	for _, l := range []*list[key]{&q.good, &q.back, &q.fresh, &q.second} {
		for k := range l.all() {
			k.inAsked.moveTo(nil, k)
		}
	}
	for k := range q.judged.all() {
		k.inJudged.moveTo(nil, k)
	}
}

// endProbe counts a question out, when its run is over.
func (s *route) endProbe(r *run) {
	if r.round == 0 {
		return
	}
	s.probes--
	if of := s.roundOf(r); of != nil {
		of.running--
	}
}

// endRound comes after what the end of r means was decided. What it told is an answer, a failure, or nothing.
func (r *run) endRound(t *turn, what telling) {
	s := t.route.roundOf(r)
	if s == nil {
		return
	}
	if what == nothing { // another one may be asked instead
		if r.past == unjudged {
			s.asked = false
		} else {
			s.again = false
		}
		if s.running == 0 && !s.bad {
			s.began = time.Time{}
		}
	}
	s.attend(t)
}

// telling is what the end of a run says of the route.
type telling uint8

const (
	something telling = iota
	nothing           // it was cancelled, put off, or taken away
)

// attend ends questions one at a time when they failed, or takes longer than one waits for.
func (s *routeProbing) attend(t *turn) {
	if !t.route.inquiry.oneByOne(t) {
		t.call(t.opts.More)
		return
	}
	end := s.began.Add(probePatience)
	switch {
	case s.began.IsZero():
		t.call(t.opts.More)
	case s.running > 0 && t.route.inquiry.careful: // its answer decides
	case s.running > 0 && t.now.Before(end):
		t.alarm.arm(end)
	case s.running > 0:
		t.route.again(t, fmt.Sprintf("the probes have not returned for %v", probePatience))
		t.route.hintWaits()
	case s.bad:
		t.route.again(t, fmt.Sprintf("the probe failed: %v", t.route.lastErr))
		t.route.hintWaits()
	}
}

// askable is the best question of the messages of k with such a past: of those that nobody has judged the one that is here for the longest time, of
// the others the one with the fewest attempts, then the oldest one. One that failed as a question may be asked before its own delay is over.
func (k *key) askable(with past) (best *Message) {
	if with == unjudged {
		if k.held.n+k.later.n == k.failedHeld {
			return nil
		}
		for m := range k.held.all() {
			if m.past() == with {
				return m
			}
		}
		return nil
	}
	if k.failedHeld == 0 {
		return nil
	}
	for m := range k.held.all() {
		if m.past() == with && (best == nil || before(m, best)) {
			best = m
		}
	}
	for m := range k.later.all() {
		if m.probes > 0 && (best == nil || before(m, best)) {
			best = m
		}
	}
	return best
}

// before tells whether a makes the better question.
func before(a, b *Message) bool {
	x, y := a.Attempts+a.probes, b.Attempts+b.probes
	return x < y || x == y && a.Sequence < b.Sequence
}
