package supervisor

import (
	"math/rand/v2"
	"time"
)

// giveBack returns a message to its stream, to come again at due and not before its own delay is over. Zero is at once.
func (g *Group) giveBack(m *Message, due, now time.Time, why string, err error, fx *effects) {
	o := Outcome{Action: GiveBack, Due: due, Why: why, Err: err}
	switch {
	case m.unsaved:
		// What failed here is known nowhere else: without a record the message would get its attempts once more.
		o.Action, o.Due, o.Err = RetryLater, later(later(due, now), m.Due), m.LastErr
	case !due.IsZero():
		o.Due = later(due, m.Due)
	}
	fx.settle(m, o)
	g.away(m, o.Due)
}

// turnAway settles a message of a key that waits as forward says.
func (g *Group) turnAway(k *key, m *Message, now time.Time, fx *effects) {
	if g.cfg.Forward == ForwardDrop {
		fx.settle(m, Outcome{Action: DropMessage, Why: "its key waits and forward is drop", Err: k.lastErr})
		return
	}
	due := later(g.waitOf(k), now.Add(minGiveBack))
	if first, until, any := k.outside.next(now); any && first < m.Sequence {
		due = later(due, until.Add(-g.outsideFor())) // ordered: not before the one it waits for
	}
	g.giveBack(m, due, now, "its key waits", k.lastErr, fx)
}

// minGiveBack keeps a message whose key is about to go on from coming and going.
const minGiveBack = 100 * time.Millisecond

// suspendedFor is how long the messages of a suspended key stay away.
const suspendedFor = time.Hour

// refuse settles a message of a suspended key.
func (g *Group) refuse(k *key, m *Message, now time.Time, fx *effects) {
	if k.gaveUp {
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonGaveUp, Err: k.lastErr})
		return
	}
	away := time.Duration(float64(suspendedFor) * (1 - 0.1*rand.Float64()))
	g.giveBack(m, now.Add(away), now, "its key is suspended", k.lastErr, fx)
	fx.last().Suspended = true
}

const (
	overflowMin = time.Minute
	unjudgedMin = 4 * time.Second
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
func (g *Group) overflow(k *key, m *Message, now time.Time) time.Duration {
	d := max(inVain(m), g.waitOf(k).Sub(now))
	switch {
	case g.route.state != Flowing && k.state == Flowing && !m.judged():
		d = min(d, unjudgedMin<<max(0, min(m.Returns, 8)))
	case g.opts.Ordered:
		d = max(overflowMin, g.waitOf(k).Sub(now)) // it is called back
	}
	return time.Duration(float64(d) * (0.5 + rand.Float64()))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
