package supervise

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
//
// A route that is suspended goes on as how says; all others ask first in any case.
func (g *Group) EndWaits(how Resumption) Ended {
	t := g.lock()
	rs := &t.route
	ended := Ended{Route: rs.shown(), Why: rs.outage.why, Since: rs.outage.since}
	for _, k := range t.keys {
		switch k.endWait(t) {
		case Waiting:
			ended.Waiting++
		case Suspended:
			ended.Suspended++
		}
	}
	switch rs.shown() {
	case Suspended:
		t.route.resume(t, how)
		t.call(t.opts.More)
	case Waiting, Probing:
		rs.restarts, rs.notBefore = 0, time.Time{}
		rs.inquiry.restart(t.now)
		rs.beginRound("resumed")
		t.call(t.opts.More)
	}
	t.startAll()
	t.unlock()
	return ended
}

// EndWait is EndWaits for one key. It returns the key's state before; Flowing means that there was nothing to end.
func (g *Group) EndWait(name string) State {
	t := g.lock()
	was := Flowing
	if k := t.keys[name]; k != nil {
		was = k.endWait(t)
		t.startAll()
	}
	t.unlock()
	return was
}

func (k *key) endWait(t *turn) (was State) {
	switch was = k.state.is(); was {
	case Waiting:
		k.restarts = 0
		k.probe(t, "resumed")
		k.attend(t)
	case Suspended:
		k.resume(t)
	}
	return was
}
