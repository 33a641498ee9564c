package supervise

import "time"

// A route is suspended when it got nearly nothing but dead for an answer (see flood.go), or when what answers says that it wants no
// more (Verdict.Suspend). What answers is not believed any more: a message that is answered so stays, whenever its run began. So a
// broken endpoint costs no more dead letters than DeadTrip says, however many messages are in flight and however often it is asked.
//
// It asks like a route that tripped (see asking.go), so that publishers of bad messages cannot stop the others: at once, and a message
// of a key that succeeded lately first. The first success ends it. To others all of that is one state, Suspended. When what answers said
// that it wants no more, or when an operator asked for a trial, it asks one message at a time, after waits that grow.

// suspend lets nothing of the route start but what it asks with, until a message succeeds or an operator resumes it.
func (s *route) suspend(t *turn, why string) {
	t.counts.DeadTrip++
	s.flood.clear()
	s.doubt = true
	s.wait(t, 0, why)
}

// distrusts tells whether the verdict dead is not believed, whenever the run began: its message stays.
func (s *route) distrusts() bool { return s.doubt }

// doubted takes in a run whose verdict dead is not believed.
func (r *run) doubted(t *turn, err error) {
	r.m.probes++ // others are asked before it
	t.route.evidence.good.remove(r.k.name)
	t.route.state.failed(t, r, err)
	t.keep(r.k, r.m)
}

// watch suspends the route when dead letters would flood it.
func (f *flood) watch(t *turn, r *run, v Verdict) {
	switch v.Kind {
	case Ack, Drop:
		f.succeeded(r.k.name, t.slots.began(r), t.now)
	case Dead:
		if f.died(r.k.name, t.slots.began(r), t.now) {
			t.route.lastErr = v.Err
			t.route.suspend(t, f.why(v.Err))
		}
	}
}

// began is when r did, roughly.
func (s *slots) began(r *run) time.Time { return r.deadline.Add(-s.timeout(r)) }

// resume lets a suspended route flow, or try one message now.
func (s *route) resume(t *turn, how Resumption) {
	if how == AtOnce {
		s.flow(t, "resumed")
		return
	}
	s.restarts, s.notBefore, s.inquiry.careful = 0, time.Time{}, true
	s.beginRound("resumed for a trial")
}

// Resumption is how a suspended route goes on.
type Resumption uint8

const (
	// AtOnce lets all messages start, and dead is an answer again.
	AtOnce Resumption = iota
	// Trial lets one message start now. When it succeeds the route flows; otherwise the route stays suspended, and so does the
	// message, whatever the answer. From then on the route asks one message at a time, after waits that grow to five seconds.
	Trial
)

// Inherit makes g continue where old ended, the group of the same route before it began again: suspended if old was, and with
// the answers that old got. It is called before the first message is delivered.
func (g *Group) Inherit(old *Group) {
	o := old.lock()
	f, doubt, outage, err := o.route.flood, o.route.doubt, o.route.outage, o.route.lastErr
	o.unlock()
	t := g.lock()
	defer t.unlock()
	if mine := t.route.flood; f.of != mine.of || f.need != mine.need {
		f = mine
	}
	t.route.flood = f
	if !doubt {
		return
	}
	t.route.lastErr = err
	t.route.suspend(t, outage.why)
	t.route.outage.since = outage.since
}
