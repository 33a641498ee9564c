package supervisor

import (
	"fmt"
	"slices"
	"time"
)

// routeState is the supervisor of the whole route.
type routeState struct {
	state    State // Flowing, Waiting or Probing
	until    time.Time
	outage   outage
	lastErr  error
	restarts int
	probe    *run
	ramp     int

	failures int // in a row, over all keys
	failedAt time.Time
	seen     [3]string // distinct keys of these failures
	distinct int
}

// enoughKeys is over how many keys failures must be spread before they are the route's.
const enoughKeys = 3

// firstRamp is how many messages may run at once after a probe succeeded: the next ones double it.
const firstRamp = 2

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

// routeFailed counts a failure of any key.
func (g *Group) routeFailed(r *run, err error, now time.Time, fx *effects) {
	rs := &g.route
	if r == rs.probe {
		rs.lastErr = err
		g.routeAgain(fmt.Sprintf("the probe failed: %v", err), now, fx)
		return
	}
	if rs.state != Flowing {
		return
	}
	if now.Sub(rs.failedAt) >= g.cfg.Window {
		rs.failures, rs.distinct = 0, 0
	}
	rs.failures++
	rs.failedAt, rs.lastErr = now, err
	if rs.ramp > 0 {
		rs.ramp = firstRamp
	}
	if rs.distinct < enoughKeys && !slices.Contains(rs.seen[:rs.distinct], r.k.name) {
		rs.seen[rs.distinct] = r.k.name
		rs.distinct++
	}
	if trip := *g.cfg.RouteTripAfter; trip > 0 && rs.failures >= trip && rs.distinct >= enoughKeys {
		g.counts.RouteTrip++
		g.routeAgain(fmt.Sprintf("%d failures in a row over several keys: %v", rs.failures, err), now, fx)
	}
}

func (g *Group) routeAgain(why string, now time.Time, fx *effects) {
	delay := g.cfg.Restart.Delay(g.route.restarts)
	if g.route.restarts < 1<<30 {
		g.route.restarts++
	}
	g.routeWait(delay, why, now, fx)
}

// pauseRoute is a Retry-After that stands for the whole route.
func (g *Group) pauseRoute(pause time.Duration, err error, now time.Time, fx *effects) {
	rs := &g.route
	rs.lastErr = err
	if rs.state == Waiting && !rs.until.Before(now.Add(pause)) {
		return
	}
	g.routeWait(pause, fmt.Sprintf("Retry-After: %v", err), now, fx)
}

// routeWait lets nothing of the route start for so long. What is in the window moves to the stash.
func (g *Group) routeWait(delay time.Duration, why string, now time.Time, fx *effects) {
	rs := &g.route
	rs.until = now.Add(delay)
	rs.probe, rs.ramp, rs.failures, rs.distinct = nil, 0, 0, 0
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
}

// attendRoute lets a route probe whose wait is over.
func (g *Group) attendRoute(now time.Time, fx *effects) {
	if g.route.state == Waiting && !now.Before(g.route.until) {
		g.moveRoute(Probing, "its wait is over", 0, now, fx)
	}
}

// chooseRouteProbe picks one message over all keys; nil when none may start. When there are as many children as there may
// be, none of them idle, it is a message of a key that has one: its child waits for nothing else.
func (g *Group) chooseRouteProbe(now time.Time) (of *key, best *Message) {
	var owner *key
	var owned *Message
	for k := g.stashed.first; k != nil; k = k.lists[g.stashed.id].next {
		if k.runs >= g.limit(k, now) {
			continue // of before the wait
		}
		var m *Message
		switch {
		case k.state == Probing:
			m = g.chooseProbe(k, now)
		case k.state != Flowing:
		case g.opts.Ordered:
			m = g.head(k, now)
		default:
			m = fewest(nil, k.stash.first)
		}
		if m == nil {
			g.mayRetire(k, now)
			continue
		}
		if best == nil || before(m, best) {
			of, best = k, m
		}
		if k.child != nil && (owned == nil || before(m, owned)) {
			owner, owned = k, m
		}
	}
	if best != nil && of.child == nil && of.birth == nil && owned != nil && !g.roomForChild() {
		return owner, owned
	}
	return of, best
}

// startRouteProbe starts the message that asks for the whole route whether the trouble is over.
func (g *Group) startRouteProbe(now time.Time) *run {
	if g.route.probe != nil || g.busy() >= g.slots() {
		return nil
	}
	k, m := g.chooseRouteProbe(now)
	if m == nil || g.held && !m.Alone || !g.held && g.apart(k, m) {
		return nil
	}
	if k.child == nil {
		if g.make(k); k.child == nil {
			return nil // it is being made
		}
	}
	return g.start(k, m, now)
}

// routeAnswered ends the count of failures, and a probe.
func (g *Group) routeAnswered(r *run, now time.Time, fx *effects) {
	rs := &g.route
	rs.failures, rs.distinct = 0, 0
	switch {
	case r == rs.probe:
		rs.restarts = 0
		rs.ramp = firstRamp
		g.moveRoute(Flowing, "the probe succeeded", 0, now, fx)
		for k := g.stashed.first; k != nil; k = k.lists[g.stashed.id].next {
			g.makeReady(k)
		}
	case rs.ramp > 0:
		if rs.ramp *= 2; rs.ramp >= g.opts.Concurrency {
			rs.ramp = 0
		}
	}
}

// failRoute stops the route for good.
func (g *Group) failRoute(err error, now time.Time, fx *effects) {
	if g.failed != nil {
		return
	}
	g.failed = err
	for _, k := range g.keys {
		for _, l := range []*list{&k.stash, &k.later, &k.due, &k.fresh} {
			for l.first != nil {
				m := l.first
				g.take(k, m)
				g.giveBack(m, now.Add(inVain(m)), now, "the route has stopped", nil, fx)
			}
		}
	}
	if g.opts.Failed != nil {
		fx.calls = append(fx.calls, func() { g.opts.Failed(err) })
	}
}
