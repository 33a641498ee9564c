package supervise

import "time"

// outage is what operators ask about a key or a route that does not flow: since when, and why. It outlives the single
// states: a key that goes from waiting to probing and back is in one outage, whose reason is not that a wait was over.
type outage struct {
	since time.Time // of the first wait; when nothing is wrong, since when that is so
	why   string    // the last failure, stop or decision
}

// moved notes a change of state.
func (o *outage) moved(from, to State, why string, now time.Time) {
	if from == Flowing || to == Flowing || to == Suspended {
		o.since = now
	}
	if to != Probing || from == Suspended {
		o.why = why
	}
}
