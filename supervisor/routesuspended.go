package supervisor

import "time"

// routeSuspended: nothing of the route starts until an operator resumes it. Nearly everything was answered with dead, and what
// answers is not believed any more: its messages wait in their stream, and one that is answered so now stays there, too. So an
// endpoint that is broken costs no more dead letters than DeadTrip says, however many messages are in flight.
type routeSuspended struct{}

func (*routeSuspended) is() State                          { return Suspended }
func (*routeSuspended) attend(*turn)                       {}
func (*routeSuspended) next(*turn) *run                    { return nil }
func (*routeSuspended) accepts(*turn, *key, *Message) bool { return false }
func (*routeSuspended) failed(*turn, *run, error)          {}
func (*routeSuspended) answered(*turn, *run)               {}

// suspendRoute lets nothing of the route start until it is resumed. What has not started goes back to the stream.
func (t *turn) suspendRoute(why string) {
	t.route.evidence.clear()
	t.route.flood.clear()
	t.route.trial = false
	t.moveRoute(new(routeSuspended), why, 0)
	for _, k := range t.keys {
		t.emptyAll(k, t.sendAwayPaused)
		t.alarm.wake(k, t.now) // it may be forgotten, but not by the one who is at work on it
	}
}

// onTrial tells whether one message at a time is tried on behalf of an operator; the others wait. A trial that fails goes on
// after a wait.
func (t *turn) onTrial() bool { return t.route.trial }

// distrusts tells whether the verdict dead is not believed, whenever the run began: its message stays.
func (t *turn) distrusts() bool { return t.route.is() == Suspended || t.onTrial() }

// doubted takes in a run whose verdict dead is not believed. One that began before the suspension does not end the trial.
func (t *turn) doubted(r *run, err error) {
	if t.route.is() != Suspended && r.round > 0 {
		t.route.lastErr = err
		t.suspendRoute("the trial was answered with dead: " + text(err))
	}
	t.keep(r.k, r.m)
}

// watchFlood suspends the route when dead letters would flood it.
func (t *turn) watchFlood(r *run, v Verdict) {
	f := &t.route.flood
	if t.route.is() == Suspended || !f.ended(r.k.name, v.Kind) {
		return
	}
	t.route.lastErr = v.Err
	t.suspendRoute(f.why(v.Err))
}

// resumeRoute lets a suspended route flow, or try one message first.
func (t *turn) resumeRoute(how Resumption) {
	t.route.flood.clear()
	t.expectAbsent()
	if how == Trial {
		t.route.trial = true
		t.beginRound("resumed for a trial")
		return
	}
	t.routeFlows("resumed")
}

// Resumption is how a suspended route goes on.
type Resumption uint8

const (
	// AtOnce lets all messages start.
	AtOnce Resumption = iota
	// Trial lets one message start first. When it is answered with dead the route is suspended again, and the message stays; any
	// other answer lets the route flow. When it fails, the route waits and tries one again.
	Trial
)

// awayUntil is zero, for at once, or when the message's own delay is over.
func (t *turn) awayUntil(m *Message) time.Time {
	if m.Due.After(t.now) {
		return m.Due
	}
	return time.Time{}
}

func text(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}
