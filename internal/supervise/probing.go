package supervise

import (
	"fmt"
	"time"
)

// probing: the key has a fresh child, or will have one when there is a slot and a message. After a grace it gets one message;
// what becomes of that decides whether the key flows again.
type probing struct {
	since time.Time
	grace time.Time // until then the fresh child is left alone; it begins anew when the child is there
	probe *run      // that runs
}

// probe lets k have a fresh child, which then gets one message.
func (k *key) probe(t *turn, why string) {
	s := &probing{since: t.now, grace: t.now.Add(*t.cfg.DrainGrace)}
	k.until = s.grace
	if t.nursery.shared != nil {
		t.nursery.make(t, k)
	}
	k.move(&t.moment, s, why, 0)
	t.alarm.wake(k, s.grace)
}

func (*probing) is() State          { return Probing }
func (s *probing) until() time.Time { return s.grace }

func (s *probing) attend(t *turn, k *key) {
	if t.now.Before(s.grace) {
		t.alarm.wake(k, s.grace)
	}
}

func (s *probing) born(t *turn, k *key) {
	s.grace = t.now.Add(*t.cfg.DrainGrace)
	k.until = s.grace
}

// accepts a message when there is none that could be the probe in its place.
func (s *probing) accepts(t *turn, k *key, m *Message) bool {
	first := k.held.first()
	return s.wants(t) && (k.messages() == 0 || t.opts.Ordered && first != nil && m.Sequence < first.Sequence)
}

// wants tells whether a message that comes now may be the probe, or wait to be it.
func (s *probing) wants(t *turn) bool {
	return s.probe == nil && (*t.cfg.ForwardDuringGrace || !t.now.Before(s.grace))
}

// mayProbe tells whether the probe may start now.
func (s *probing) mayProbe(t *turn, k *key) bool {
	grace := k.child != nil && t.now.Before(s.grace)
	alone := *t.cfg.ForwardDuringGrace && k.held.n == 1 && k.held.first().arrived.After(s.since)
	return s.probe == nil && (!grace || alone)
}

// choose picks in turn a message that nobody has judged yet and one that failed before, or messages that can never
// succeed would be every probe.
func (s *probing) choose(t *turn, k *key, _ line) *Message {
	switch {
	case !s.mayProbe(t, k):
		return nil
	case t.opts.Ordered:
		return t.order.head(k)
	}
	fresh, old := t.order.askable(k, unjudged), t.order.askable(k, failedBefore)
	if fresh == nil || old != nil && k.asked == unjudged {
		return old
	}
	return fresh
}

func (s *probing) candidate(t *turn, k *key, with past) *Message {
	if !s.mayProbe(t, k) {
		return nil
	}
	return t.order.askable(k, with)
}

func (s *probing) started(k *key, r *run) {
	s.probe, r.probe, k.asked = r, true, r.past
}

func (s *probing) answered(t *turn, k *key) {
	if k.tripped {
		t.route.peers.hint(Hint{Kind: ofFlows, Key: []byte(k.name)})
	}
	k.tripped = false
	k.flow = flowing{ramp: firstRamp}
	k.move(&t.moment, &k.flow, "the probe succeeded", 0)
}

func (s *probing) failed(t *turn, k *key, err error) {
	k.again(t, fmt.Sprintf("the probe failed: %v", err))
	if k.tripped {
		t.route.peers.hintKey(k)
	}
}

// probeEnded makes room for another probe.
func (k *key) probeEnded(r *run) {
	if s, ok := k.state.(*probing); ok && s.probe == r {
		s.probe = nil
	}
}
