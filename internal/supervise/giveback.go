package supervise

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
	t.order.away(t, m, o.Due)
}

// turnAway settles a message of a key that waits as forward says.
func (t *turn) turnAway(k *key, m *Message) {
	if t.route.dropsWhatWaits() {
		t.settle(m, Outcome{Action: DropMessage, Why: "its key waits and forward is drop", Err: k.lastErr})
		return
	}
	due := later(t.route.waitOf(k), t.now.Add(minGiveBack))
	if first, until, any := k.outside.next(t.now); any && first < m.Sequence {
		due = later(due, until.Add(-t.order.outsideFor())) // ordered: not before the one it waits for
	}
	if !k.is(Waiting) && !t.opts.near {
		due = later(due, t.aside.until(m, t.route.waitOf(k))) // it is called back when it may be asked, or its key flows
	}
	t.aside.put(t, k, m, due, "its key waits", k.lastErr)
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
	t.aside.put(t, k, m, t.now.Add(away), "its key is suspended", k.lastErr)
}

const (
	overflowMin = time.Minute
	overflowMax = 15 * time.Minute
)

// inVain is how long a message stays away that came in vain: a minute, and twice as long each time.
func inVain(m *Message) time.Duration {
	return min(overflowMin<<max(0, min(m.Returns, 4)), overflowMax)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// waitOf is when the key's and the route's wait are both over.
func (s *route) waitOf(k *key) time.Time { return later(k.state.until(), s.until()) }
