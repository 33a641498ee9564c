package ack

import "time"

// recallMargin is how long before its due a message may be called back: the server restarts with delays cut to whole seconds,
// and what is asked for leaves with the next burst.
const recallMargin = 2 * time.Second

// Away is a message that was given back; see [Delivery.NakAway].
type Away struct{ d Delivery }

// Recall asks for the message to come at due, or at once when that is over: the server lets a later NAK replace an earlier one. It does
// nothing when the message is not away, or about to come by itself, since then another instance may be at it.
func (a *Away) Recall(due time.Time) {
	a.d.s.mu.Lock()
	defer a.d.s.mu.Unlock()
	a.recall(due, time.Now())
}

// RecallAlone is Recall while there is no other instance: what should have come is asked for once more. The server forgets what it is about to deliver again
// when the stream is purged, and brings it after AckWait only (nats-server 2.15.2, consumer.go, purge).
func (a *Away) RecallAlone(due time.Time) {
	s, now := a.d.s, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch late := now.Sub(a.d.due) >= recallMargin; {
	case !late:
		a.recall(due, now)
	case !s.fenced:
		a.ask(later(due, now), now.Add(recallMargin))
	}
}

// recall is Recall with the lock held.
func (a *Away) recall(due, now time.Time) {
	if due = later(due, now); a.d.due.Sub(due) >= recallMargin {
		a.ask(due, a.d.due)
	}
}

// ask asks for the message to come at due. Until then nobody else can have it. The lock is held.
func (a *Away) ask(due, until time.Time) {
	d := &a.d
	s := d.s
	if s.abandoned {
		return
	}
	current := s.bySeq.get(d.Sequence)
	if current != nil && current != d {
		return // it is back
	}
	waiting := current == d && d.slot == noSlot // for the burst
	d.fence.Store(int64(s.at(until)))
	d.due = due
	if waiting {
		return
	}
	s.slots.free(d.slot) // of the NAK with the long delay, if that is not confirmed yet
	s.bySeq.put(d)
	s.naks = append(s.naks, d)
	s.rouse()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
