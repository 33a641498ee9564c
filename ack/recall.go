package ack

import "time"

// recallMargin is how long before its due a message may be called back: the server restarts with delays cut to whole seconds,
// and what is asked for leaves with the next burst.
const recallMargin = 2 * time.Second

// Away is a message that was given back; see [Delivery.NakAway].
type Away struct{ d Delivery }

// Recall asks for the message to come at due, or at once when that is over: the server lets a later NAK replace an earlier one. It does
// nothing when the message is not away, or about to come by itself, since then another instance may be at it. Alone says that there is none: then what should have come is asked for once more. The server forgets what it is about to deliver again
// when the stream is purged, and brings it after AckWait only (nats-server 2.15.2, consumer.go, purge).
func (a *Away) Recall(due time.Time, alone bool) {
	d := &a.d
	s := d.s
	now := time.Now()
	if due.Before(now) {
		due = now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	late := alone && now.Sub(d.due) >= recallMargin
	if s.abandoned || late && s.fenced || !late && d.due.Sub(due) < recallMargin {
		return
	}
	current := s.bySeq.get(d.Sequence)
	if current != nil && current != d {
		return // it is back
	}
	waiting := current == d && d.slot == noSlot // for the burst
	until := d.due
	if late {
		until = now.Add(recallMargin)
	}
	d.fence.Store(int64(s.at(until))) // until then nobody else can have it
	d.due = due
	if waiting {
		return
	}
	s.slots.free(d.slot) // of the NAK with the long delay, if that is not confirmed yet
	s.bySeq.put(d)
	s.naks = append(s.naks, d)
	s.rouse()
}
