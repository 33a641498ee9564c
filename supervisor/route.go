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

func (g *Group) moveRoute(to State, why string, delay time.Duration, now time.Time, fx *effects) {
	rs := &g.route
	if !mayMove(rs.state, to) {
		panic(fmt.Sprintf("supervisor: route: no move from %v to %v", rs.state, to))
	}
	fx.events = append(fx.events, Event{
		Route: true, From: rs.state, To: to, Why: why, Delay: delay, Restarts: rs.restarts, Err: rs.lastErr,
	})
	rs.outage.moved(rs.state, to, why, now)
	rs.state = to
}

// routeFailed takes in a failure of any key.
func (g *Group) routeFailed(r *run, err error, now time.Time, fx *effects) {
	rs := &g.route
	rs.evidence.good.remove(r.k.name)
	if r.routeProbe > 0 {
		g.roundFailed(r, err)
		return
	}
	if rs.state == Flowing && (r.first || r.probe) && rs.evidence.fails(r.k.name, now) {
		g.counts.RouteTrip++
		rs.lastErr = err
		why := fmt.Sprintf("%d of the last %d new messages and probes failed: %v", rs.evidence.failed, rs.evidence.of, err)
		g.routeAgain(why, now, fx)
	}
}

// routeAgain makes the route wait for its next probes, longer each time.
func (g *Group) routeAgain(why string, now time.Time, fx *effects) {
	delay := g.cfg.Restart.Delay(g.route.restarts)
	if g.route.restarts < 1<<30 {
		g.route.restarts++
	}
	g.routeWait(delay, why, now, fx)
	if _, m := g.chooseRouteProbe(true, now); m != nil {
		g.hurryRoute(now)
	}
}

// pauseRoute is a Retry-After that stands for the whole route.
func (g *Group) pauseRoute(pause time.Duration, err error, now time.Time, fx *effects) {
	rs := &g.route
	rs.lastErr = err
	rs.notBefore = later(rs.notBefore, now.Add(pause))
	if rs.state != Waiting || rs.until.Before(rs.notBefore) {
		g.routeWait(pause, fmt.Sprintf("Retry-After: %v", err), now, fx)
	}
}

// routeWait lets nothing of the route start for so long. What is in the window moves to the stash.
func (g *Group) routeWait(delay time.Duration, why string, now time.Time, fx *effects) {
	rs := &g.route
	rs.began, rs.until, rs.ramp = now, later(now.Add(delay), rs.notBefore), 0
	rs.evidence.clear()
	g.moveRoute(Waiting, why, delay, now, fx)
	for side := range g.ready {
		for q := &g.ready[side]; q.len() > 0; {
			k := q.pop()
			k.queued[side] = false
			g.stashWindow(k, now, fx)
		}
	}
	// Keys at their limit, or without a child yet, are in no queue.
	for _, k := range g.keys {
		if g.window.messages == 0 {
			break
		}
		g.stashWindow(k, now, fx)
	}
	g.bound(now, fx)
	g.arm(rs.until)
	fx.calls = append(fx.calls, g.opts.More) // there may be room for messages that nobody has judged
}

// freshProbeEvery bounds the wait of a route to which messages come that nobody has judged: one of them may well succeed,
// whatever the others do.
const freshProbeEvery = 5 * time.Second

// hurryRoute shortens the wait of the route for messages that nobody has judged.
func (g *Group) hurryRoute(now time.Time) {
	rs := &g.route
	soonest := later(rs.began.Add(freshProbeEvery), rs.notBefore)
	if rs.state == Waiting && soonest.Before(rs.until) {
		rs.until = later(soonest, now)
		g.arm(rs.until)
	}
}

// attendRoute begins a round of probes when the route's wait is over, and ends one that nobody answers.
func (g *Group) attendRoute(now time.Time, fx *effects) {
	rs := &g.route
	switch {
	case rs.state == Waiting && !now.Before(rs.until):
		if most := 2 * g.cfg.MaxStuck; g.stuck > most {
			// Each probe could leave one more behind.
			g.routeAgain(fmt.Sprintf("stopped: %d handlers ignore their timeout; the next probe is when no more than %d do", g.stuck, most), now, fx)
			return
		}
		g.beginRound()
		g.moveRoute(Probing, "its wait is over", 0, now, fx)
		fx.calls = append(fx.calls, g.opts.More)
	case rs.state == Probing:
		g.attendRound(now, fx)
	case rs.ramp > 0 && !now.Before(rs.rampAt):
		g.rampUp(now)
	case rs.ramp > 0:
		g.arm(rs.rampAt)
	}
}

// routeAnswered takes in a success of any key, or an answer that is one.
func (g *Group) routeAnswered(r *run, now time.Time, fx *effects) {
	rs := &g.route
	rs.evidence.succeeded(r.k.name, now)
	switch {
	case r.routeProbe > 0 && rs.state != Flowing:
		g.routeFlows("a probe succeeded", now, fx)
	case rs.ramp > 0:
		g.rampUp(now)
	}
}

// rampUp lets twice as many run at once.
func (g *Group) rampUp(now time.Time) {
	rs := &g.route
	if rs.ramp *= 2; rs.ramp >= g.opts.Concurrency {
		rs.ramp = 0
		return
	}
	rs.rampAt = now.Add(rampEvery)
	g.arm(rs.rampAt)
}

// ended counts out what began in another epoch.
func (rs *routeState) ended(epoch int) {
	if epoch != rs.epoch && rs.old > 0 {
		rs.old--
	}
}

// routeFlows lets what waits for the route start. What failed waits for its own delay.
func (g *Group) routeFlows(why string, now time.Time, fx *effects) {
	rs := &g.route
	if rs.state == Waiting { // a probe of an earlier round
		g.moveRoute(Probing, why, 0, now, fx)
	}
	rs.restarts, rs.round.size, rs.notBefore = 0, 0, time.Time{}
	rs.epoch++
	rs.old = g.busy()
	rs.ramp, rs.rampAt = firstRamp, now.Add(rampEvery)
	g.arm(rs.rampAt)
	g.moveRoute(Flowing, why, 0, now, fx)
	if rs.stopped != nil {
		rs.stopped = nil
		g.tellFailed(nil, fx)
	}
	for k := g.stashed.first; k != nil; k = k.lists[g.stashed.id].next {
		g.makeReady(k)
		if g.opts.Ordered {
			g.callBack(k, now, fx)
		}
	}
	fx.calls = append(fx.calls, g.opts.More)
}

// failRoute stops the route for a fault that no message is to blame for. It tries again by itself, like a route that
// tripped, but says that it is stopped.
func (g *Group) failRoute(err error, now time.Time, fx *effects) {
	rs := &g.route
	if rs.stopped == nil {
		rs.stopped = err
		g.tellFailed(err, fx)
	}
	if rs.lastErr = err; rs.state != Waiting {
		g.routeAgain(fmt.Sprintf("stopped: %v", err), now, fx)
	}
}

func (g *Group) tellFailed(err error, fx *effects) {
	if g.opts.Failed != nil {
		fx.calls = append(fx.calls, func() { g.opts.Failed(err) })
	}
}
