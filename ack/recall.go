package ack

import "time"

// Recall asks for a message that was given back with a long delay to come soon. It does nothing when the message is not
// away, or about to come by itself: then another instance may be at it. The server lets a later NAK replace an earlier
// one.
func (d *Delivery) Recall() {
	s := d.s
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.state != naked || d.plain || d.slot != noSlot || d.due.Sub(now) < s.cfg.AckWait {
		return
	}
	if s.abandoned || s.bySeq[d.Sequence] != nil {
		return // it is nobody's any more, or it is back
	}
	d.fence.Store(int64(s.at(d.due))) // until then nobody else can have it
	d.due = now
	s.bySeq[d.Sequence] = d
	s.naks = append(s.naks, d)
}
