package ack

import "time"

// leaseList holds the live deliveries in the order of their last beat.
type leaseList struct {
	first, last *Delivery
	n           int
}

// add begins a lease that was certainly young at the time of contact.
func (l *leaseList) add(d *Delivery, contact time.Time) {
	d.leaseStart, d.beat = contact, contact
	l.push(d)
}

func (l *leaseList) push(d *Delivery) {
	// Beats come nearly in order: contact never goes back, and a beat is now.
	after := l.last
	for after != nil && after.beat.After(d.beat) {
		after = after.prev
	}
	d.prev = after
	if after == nil {
		d.next, l.first = l.first, d
	} else {
		d.next, after.next = after.next, d
	}
	if d.next == nil {
		l.last = d
	} else {
		d.next.prev = d
	}
	l.n++
}

func (l *leaseList) remove(d *Delivery) {
	if d.prev == nil {
		l.first = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next == nil {
		l.last = d.prev
	} else {
		d.next.prev = d.prev
	}
	d.prev, d.next = nil, nil
	l.n--
}

// renew is a new delivery of the same message.
func (l *leaseList) renew(d *Delivery, contact time.Time) {
	l.remove(d)
	l.add(d, contact)
}

// confirmed says that the server has extended the lease at some time after sent.
func (l *leaseList) confirmed(d *Delivery, sent time.Time) {
	if sent.After(d.leaseStart) {
		d.leaseStart = sent
	}
}

// extend asks for more time for every live delivery that had no beat for a third of AckWait. What is fenced is left
// alone: another instance may have it, and +WPI would take its lease for ours.
func (s *Session) extend(now time.Time) {
	every := s.cfg.AckWait/3 - burstEvery // the tick may come that much late
	var out []outgoing
	s.mu.Lock()
	for d := s.leases.first; d != nil && now.Sub(d.beat) >= every; {
		next := d.next
		if now.Sub(d.leaseStart) < s.cfg.AckWait {
			_, token := s.slots.use(d, false, now)
			out = append(out, outgoing{to: d.reply, reply: s.prefix + token})
		}
		s.leases.remove(d)
		d.beat = now
		s.leases.push(d)
		if next == nil || next.beat.Equal(now) {
			break
		}
		d = next
	}
	s.mu.Unlock()
	for _, o := range out {
		s.publish(o.to, o.reply, progressPayload)
	}
}
