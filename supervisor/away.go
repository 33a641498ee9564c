package supervisor

import (
	"math/rand/v2"
	"time"
)

// giveBack returns a message to its stream, to come again at due and not before its own delay is over. Zero is at once.
func (t *turn) giveBack(m *Message, due time.Time, why string, err error) {
	o := Outcome{Action: GiveBack, Due: due, Why: why, Err: err}
	switch {
	case m.unsaved:
		// Only this instance knows the attempts so far. Without a record the message would get all its attempts once more.
		o.Action, o.Due, o.Err = RetryLater, later(later(due, t.now), m.Due), m.LastErr
	case !due.IsZero():
		o.Due = later(due, m.Due)
	}
	t.settle(m, o)
	t.away(m, o.Due)
}

// turnAway settles a message of a key that waits as forward says.
func (t *turn) turnAway(k *key, m *Message) {
	if t.cfg.Forward == ForwardDrop && !t.route.doubt {
		t.settle(m, Outcome{Action: DropMessage, Why: "its key waits and forward is drop", Err: k.lastErr})
		return
	}
	due := later(t.waitOf(k), t.now.Add(minGiveBack))
	if first, until, any := k.outside.next(t.now); any && first < m.Sequence {
		due = later(due, until.Add(-t.outsideFor())) // ordered: not before the one it waits for
	}
	t.giveBack(m, due, "its key waits", k.lastErr)
}

// minGiveBack keeps a message whose key is about to go on from coming and going.
const minGiveBack = 100 * time.Millisecond

// suspendedFor is how long the messages of a suspended key stay away.
const suspendedFor = time.Hour

// refuse settles a message of a suspended key.
func (t *turn) refuse(k *key, m *Message) {
	if k.gaveUp() {
		t.settle(m, Outcome{Action: DeadLetter, Reason: ReasonGaveUp, Err: k.lastErr})
		return
	}
	away := time.Duration(float64(suspendedFor) * (1 - 0.1*rand.Float64()))
	t.giveBack(m, t.now.Add(away), "its key is suspended", k.lastErr)
	t.last().Suspended = true
}

const (
	overflowMin = time.Minute
	unjudgedMin = 2 * time.Second
	overflowMax = 15 * time.Minute
)

// inVain is how long a message stays away that came in vain: a minute, and twice as long each time.
func inVain(m *Message) time.Duration {
	return min(overflowMin<<max(0, min(m.Returns, 4)), overflowMax)
}

// overflow is how long a message stays away that found no place: the rest of the wait, at least a minute, twice as long
// each time it comes in vain, so that the backlog of a dead dependency does not churn; half of it either way at random,
// so that it does not come at once. One that nobody has judged, of a key that
// flows, comes again sooner: it is the route that waits, and such messages end its wait.
func (t *turn) overflow(k *key, m *Message) time.Duration {
	d := max(inVain(m), t.waitOf(k).Sub(t.now))
	switch {
	case !t.route.flows() && k.flows() && !m.judged():
		d = min(d, unjudgedMin<<max(0, min(m.Returns, 8)))
	case t.opts.Ordered:
		d = max(overflowMin, t.waitOf(k).Sub(t.now)) // it is called back
	}
	return time.Duration(float64(d) * (0.5 + rand.Float64()))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// waitOf is when the key's and the route's wait are both over.
func (t *turn) waitOf(k *key) time.Time { return later(k.state.until(), t.route.until()) }
