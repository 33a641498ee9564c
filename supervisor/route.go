package supervisor

import (
	"fmt"
	"time"
)

// routeState is the supervisor of the whole route.
type routeState struct {
	state State // Flowing, Waiting or Probing
	began time.Time
	until time.Time // waiting: when it is over
	// notBefore is what a handler named with Retry-After.
	notBefore time.Time
	outage    outage
	lastErr   error
	stopped   error // a fault that only somebody else can mend: the handler cannot start, or does not return
	restarts  int
	// ramp is how many of those that began since the route flows may run at once; 0: no bound. It doubles with each success,
	// and at rampAt if there is none: those that run may hang.
	ramp   int
	rampAt time.Time
	epoch  int // counts how often the route came to flow
	old    int // of what runs, handlers and factories that began before that

	evidence evidence
	round    round
	probes   int // that run, of this round and of earlier ones
}

// firstRamp is how many messages may run at once after a probe succeeded: the next ones double it.
const firstRamp = 2

// rampEvery is when the ramp goes on without a success.
const rampEvery = time.Second

func (t *turn) moveRoute(to State, why string, delay time.Duration) {
	rs := &t.route
	if !mayMove(rs.state, to) {
		panic(fmt.Sprintf("supervisor: route: no move from %v to %v", rs.state, to))
	}
	t.tell(Event{
		Route: true, From: rs.state, To: to, Why: why, Delay: delay, Restarts: rs.restarts, Err: rs.lastErr,
	})
	rs.outage.moved(rs.state, to, why, t.now)
	rs.state = to
}

// routeFailed takes in a failure of any key.
func (t *turn) routeFailed(r *run, err error) {
	rs := &t.route
	rs.evidence.good.remove(r.k.name)
	if r.routeProbe > 0 {
		t.roundFailed(r, err)
		return
	}
	if rs.state == Flowing && (r.first || r.probe) && rs.evidence.fails(r.k.name, t.now) {
		t.counts.RouteTrip++
		rs.lastErr = err
		why := fmt.Sprintf("%d of the last %d new messages and probes failed: %v", rs.evidence.failed, rs.evidence.of, err)
		t.routeAgain(why)
	}
}

// routeAgain makes the route wait for its next probes, longer each time.
func (t *turn) routeAgain(why string) {
	delay := t.cfg.Restart.Delay(t.route.restarts)
	if t.route.restarts < 1<<30 {
		t.route.restarts++
	}
	t.routeWait(delay, why)
	if _, m := t.chooseRouteProbe(true); m != nil {
		t.hurryRoute()
	}
}

// pauseRoute is a Retry-After that stands for the whole route.
func (t *turn) pauseRoute(pause time.Duration, err error) {
	rs := &t.route
	rs.lastErr = err
	rs.notBefore = later(rs.notBefore, t.now.Add(pause))
	if rs.state != Waiting || rs.until.Before(rs.notBefore) {
		t.routeWait(pause, fmt.Sprintf("Retry-After: %v", err))
	}
}

// routeWait lets nothing of the route start for so long. What is in the window moves to the stash.
func (t *turn) routeWait(delay time.Duration, why string) {
	rs := &t.route
	rs.began, rs.until, rs.ramp = t.now, later(t.now.Add(delay), rs.notBefore), 0
	rs.evidence.clear()
	t.moveRoute(Waiting, why, delay)
	for side := range t.ready {
		for q := &t.ready[side]; q.len() > 0; {
			k := q.pop()
			k.queued[side] = false
			t.stashWindow(k)
		}
	}
	// Keys at their limit, or without a child yet, are in no queue.
	for _, k := range t.keys {
		if t.window.messages == 0 {
			break
		}
		t.stashWindow(k)
	}
	t.bound()
	t.arm(rs.until)
	t.call(t.opts.More) // there may be room for messages that nobody has judged
}

// freshProbeEvery bounds the wait of a route to which messages come that nobody has judged: one of them may well succeed,
// whatever the others do.
const freshProbeEvery = 5 * time.Second

// hurryRoute shortens the wait of the route for messages that nobody has judged.
func (t *turn) hurryRoute() {
	rs := &t.route
	soonest := later(rs.began.Add(freshProbeEvery), rs.notBefore)
	if rs.state == Waiting && soonest.Before(rs.until) {
		rs.until = later(soonest, t.now)
		t.arm(rs.until)
	}
}

// attendRoute begins a round of probes when the route's wait is over, and ends one that nobody answers.
func (t *turn) attendRoute() {
	rs := &t.route
	switch {
	case rs.state == Waiting && !t.now.Before(rs.until):
		if most := 2 * t.cfg.MaxStuck; t.stuck > most {
			// Each probe could leave one more behind.
			t.routeAgain(fmt.Sprintf("stopped: %d handlers ignore their timeout; the next probe is when no more than %d do", t.stuck, most))
			return
		}
		t.beginRound()
		t.moveRoute(Probing, "its wait is over", 0)
		t.call(t.opts.More)
	case rs.state == Probing:
		t.attendRound()
	case rs.ramp > 0 && !t.now.Before(rs.rampAt):
		t.rampUp()
	case rs.ramp > 0:
		t.arm(rs.rampAt)
	}
}

// routeAnswered takes in a success of any key, or an answer that is one.
func (t *turn) routeAnswered(r *run) {
	rs := &t.route
	rs.evidence.succeeded(r.k.name, t.now)
	switch {
	case r.routeProbe > 0 && rs.state != Flowing:
		t.routeFlows("a probe succeeded")
	case rs.ramp > 0:
		t.rampUp()
	}
}

// rampUp lets twice as many run at once.
func (t *turn) rampUp() {
	rs := &t.route
	if rs.ramp *= 2; rs.ramp >= t.opts.Concurrency {
		rs.ramp = 0
		return
	}
	rs.rampAt = t.now.Add(rampEvery)
	t.arm(rs.rampAt)
}

// ended counts out what began in another epoch.
func (rs *routeState) ended(epoch int) {
	if epoch != rs.epoch && rs.old > 0 {
		rs.old--
	}
}

// routeFlows lets what waits for the route start. What failed waits for its own delay.
func (t *turn) routeFlows(why string) {
	rs := &t.route
	if rs.state == Waiting { // a probe of an earlier round
		t.moveRoute(Probing, why, 0)
	}
	rs.restarts, rs.round.size, rs.notBefore = 0, 0, time.Time{}
	rs.epoch++
	rs.old = t.busy()
	rs.ramp, rs.rampAt = firstRamp, t.now.Add(rampEvery)
	t.arm(rs.rampAt)
	t.moveRoute(Flowing, why, 0)
	if rs.stopped != nil {
		rs.stopped = nil
		t.tellFailed(nil)
	}
	for k := t.stashed.first; k != nil; k = k.lists[t.stashed.id].next {
		t.makeReady(k)
		if t.opts.Ordered {
			t.callBack(k)
		}
	}
	t.call(t.opts.More)
}

// failRoute stops the route for a fault that no message is to blame for. It tries again by itself, like a route that
// tripped, but says that it is stopped.
func (t *turn) failRoute(err error) {
	rs := &t.route
	if rs.stopped == nil {
		rs.stopped = err
		t.tellFailed(err)
	}
	if rs.lastErr = err; rs.state != Waiting {
		t.routeAgain(fmt.Sprintf("stopped: %v", err))
	}
}

func (t *turn) tellFailed(err error) {
	if tell := t.opts.Failed; tell != nil {
		t.call(func() { tell(err) })
	}
}
