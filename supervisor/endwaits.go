package supervisor

import "time"

// Ended is what EndWaits ended.
type Ended struct {
	// Route is the state of the route before; Flowing: there was nothing to end.
	Route State
	Why   string    // of the route's wait
	Since time.Time // of it
	// Waiting and Suspended are how many keys were in these states.
	Waiting, Suspended int
}

// EndWaits has the route and all its keys probe now, whatever they wait for: a trip, a Retry-After, a fault that stopped the
// route, or an operator who suspended the key. Messages that wait outside the group for their own delay still do.
func (g *Group) EndWaits() Ended {
	var fx effects
	now := g.lock()
	rs := &g.route
	ended := Ended{Route: rs.state, Why: rs.outage.why, Since: rs.outage.since}
	for _, k := range g.keys {
		switch g.endWait(k, now, &fx) {
		case Waiting:
			ended.Waiting++
		case Suspended:
			ended.Suspended++
		}
	}
	if rs.state != Flowing {
		rs.restarts, rs.notBefore = 0, time.Time{}
		g.beginRound()
		if rs.state == Waiting {
			g.moveRoute(Probing, "resumed", 0, now, &fx)
		}
		fx.calls = append(fx.calls, g.opts.More)
	}
	g.startAll(now)
	g.unlock(&fx)
	return ended
}

// EndWait is EndWaits for one key. It returns the key's state before; Flowing means that there was nothing to end.
func (g *Group) EndWait(name string) State {
	var fx effects
	now := g.lock()
	was := Flowing
	if k := g.keys[name]; k != nil {
		was = g.endWait(k, now, &fx)
		g.startAll(now)
	}
	g.unlock(&fx)
	return was
}

func (g *Group) endWait(k *key, now time.Time, fx *effects) (was State) {
	switch was = k.state; was {
	case Waiting:
		k.restarts = 0
		g.probe(k, "resumed", now, fx)
		g.attend(k, now, fx)
	case Suspended:
		g.resume(k, now, fx)
	}
	return was
}

// resume lets a suspended key probe.
func (g *Group) resume(k *key, now time.Time, fx *effects) {
	k.gaveUp, k.restarts, k.failures, k.several, k.tripped = false, 0, 0, false, false
	g.probe(k, "resumed", now, fx)
	g.attend(k, now, fx)
}
