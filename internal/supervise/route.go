package supervise

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// route is the supervisor of the whole route: it waits, like a key, when what all its keys depend on is down.
type route struct {
	*moment
	state     routeState
	told      State // what others were told last
	outage    outage
	lastErr   error
	stopped   error     // a fault that only somebody else can mend: the handler cannot start, or does not return
	notBefore time.Time // named by a handler with Retry-After
	restarts  int
	evidence  evidence
	flood     flood
	inquiry   inquiry
	peers     peers
	succeeded time.Time
	mute      int  // runs in a row that got no answer
	doubt     bool // it is suspended: dead is not believed
	probes    int  // that run: questions of this state and of earlier ones
	anew      int  // for how many more starts it alternates between the newest and the oldest, whatever fails: it has just begun to flow
}

// routeState is what a route is in. Each state is a type with what belongs to it: routeFlowing, routeWaiting, routeProbing.
type routeState interface {
	is() State
	// attend does what time brings.
	attend(t *turn)
	// next takes the message that is to start now; nil when none may.
	next(t *turn) *run
	// accepts tells whether a message of k that arrives now may start, as far as the route is concerned.
	accepts(t *turn, k *key, m *Message) bool
	// failed and answered are told of a run that the route's evidence may count.
	failed(t *turn, r *run, err error)
	answered(t *turn, r *run)
}

func newRoute(c supervisor.Config, of *moment) route {
	return route{moment: of, state: routeFlowing{}, evidence: newEvidence(c), flood: newFlood(c), peers: peers{moment: of}}
}

func (s *route) is() State { return s.state.is() }

// shown is the state that others see.
func (s *route) shown() State {
	if s.doubt {
		return Suspended
	}
	return s.is()
}

func (s *route) flows() bool { return s.state.is() == Flowing }

// until is when a waiting route goes on.
func (s *route) until() time.Time {
	if w, ok := s.state.(*routeWaiting); ok {
		return w.until
	}
	return time.Time{}
}

// move is the only way of the route from one state to another.
func (s *route) move(to routeState, why string, delay time.Duration) {
	from := s.is()
	if !mayMove(from, to.is()) {
		panic(fmt.Sprintf("supervisor: route: no move from %v to %v", from, to.is()))
	}
	s.state = to
	was := s.told
	if s.told = s.shown(); s.told == Suspended && was == Suspended {
		return // others see it as suspended, whether it waits or asks meanwhile
	}
	s.tell(Event{Route: true, From: was, To: s.told, Why: why, Delay: delay, Restarts: s.restarts, Err: s.lastErr})
	s.outage.moved(was, s.told, why, s.now)
}

// failed takes in a failure of any key.
func (s *route) failed(t *turn, r *run, err error) {
	s.evidence.good.remove(r.k.name)
	s.state.failed(t, r, err)
}

// answered takes in a success of any key, or an answer that is one.
func (s *route) answered(t *turn, r *run, how Kind) {
	e := &s.evidence
	s.succeeded = t.now
	s.peers.succeededHere(r.k.name)
	e.succeeded(r.k.name, t.now)
	switch {
	case how == Dead:
		e.good.remove(r.k.name)
	case e.failed > 0, s.flood.deads > 0, rand.Uint32()%goodEvery == 0:
		e.good.add(r.k.name)
	}
	s.state.answered(t, r)
}

// goodEvery is of how many successes one, by chance, tells of a good key while nothing is wrong.
const goodEvery = 8

// stop stops the route for a fault that no message is to blame for. It tries again by itself, like a route that
// tripped, but says that it is stopped.
func (s *route) stop(t *turn, err error) {
	s.stoppedBy(err)
	if s.lastErr = err; s.is() != Waiting {
		s.again(t, fmt.Sprintf("stopped: %v", err))
	}
}

// stoppedBy notes why the route is stopped now: the first cause may be mended, and another one be left.
func (s *route) stoppedBy(err error) {
	if s.stopped == nil || s.stopped.Error() != err.Error() {
		s.stopped = err
		s.tellFailed(err)
	}
}

// tellFailed tells the owner why the route is stopped; nil: it goes on.
func (s *route) tellFailed(err error) {
	if tell := s.opts.Failed; tell != nil {
		s.call(func() { tell(err) })
	}
}

// failsAgain tells whether k failed before, nothing of the route has succeeded since, and messages of several keys failed. Where a
// fallback has what waits, that is enough for k to wait: with few messages it takes long until more is known.
func (s *route) failsAgain(k *key) bool {
	e := &s.evidence
	return *s.cfg.TripAfter > 0 && k.failures > 0 && s.succeeded.Before(k.began) && e.rhythm.since >= e.keys && e.distinct()
}

// endTrips has the keys probe that wait because several of their messages failed: that was the outage that is over.
func (t *turn) endTrips() {
	for _, k := range t.keys {
		if w, waits := k.state.(*waiting); waits && k.tripped && !w.named {
			k.probe(t, "its route flows again")
			k.attend(t)
		}
	}
}

// routeFlowing: keys start their messages by themselves.
type routeFlowing struct{}

// succeedsWithin is how long ago the last success must be at least among many failures: thousands may fail in the meantime, while those
// that succeed are on their way.
const succeedsWithin = time.Second

func (routeFlowing) is() State                          { return Flowing }
func (routeFlowing) attend(t *turn)                     { t.slots.attendRamp() }
func (routeFlowing) answered(t *turn, _ *run)           { t.slots.rampUp() }
func (routeFlowing) next(t *turn) *run                  { return t.slots.next(t) }
func (routeFlowing) accepts(*turn, *key, *Message) bool { return true }

// failed trips the route when nearly all failed lately.
func (routeFlowing) failed(t *turn, r *run, err error) {
	s := &t.route
	if r.round > 0 || r.past == failedBefore && !r.probe {
		return
	}
	var why string
	switch trips := s.evidence.fails(r.k.name, t.now); {
	case trips && s.evidence.rhythm.spacing > s.evidence.of && t.now.Sub(s.succeeded) < succeedsWithin:
		return // among many that fail
	case trips:
		why = fmt.Sprintf("%d of the last %d new messages and probes failed", s.evidence.failed, s.evidence.of)
	case s.peersTrip():
		why = fmt.Sprintf("%d of the last %d new messages and probes failed, and those of other instances", s.evidence.failed, len(s.evidence.last))
	default:
		s.hintFailing()
		return
	}
	t.counts.RouteTrip++
	s.lastErr = err
	t.route.again(t, fmt.Sprintf("%s: %v", why, err))
	s.hintWaits()
}

// flow lets what waits for the route start. What failed waits for its own delay.
func (s *route) flow(t *turn, why string) {
	if s.is() != Probing { // a probe of an earlier round, or an operator
		s.move(new(routeProbing), why, 0)
	}
	s.unlineAll()
	ramp := firstRamp
	if half := t.opts.Concurrency / 2; s.inquiry.asked >= half {
		ramp = max(firstRamp, half) // so many ran at once while it asked
	}
	s.restarts, s.notBefore, s.doubt = 0, time.Time{}, false
	s.inquiry = inquiry{number: s.inquiry.number, newest: s.inquiry.newest}
	s.anew = t.opts.Concurrency + s.evidence.of
	t.slots.reopen(ramp)
	s.move(routeFlowing{}, why, 0)
	if s.stopped != nil {
		s.stopped = nil
		s.tellFailed(nil)
	}
	for k := range t.stash.keys.all() {
		t.stash.release(t, k)
		t.makeReady(k)
		if t.opts.Ordered {
			t.order.callBack(t, k)
		}
	}
	for _, bucket := range t.aside.buckets {
		t.aside.offer(bucket)
	}
	for _, key := range t.aside.keys {
		t.aside.offer(key)
	}
	t.endTrips()
	t.call(t.opts.More)
}
