package ack

// leaseList holds the live deliveries in the order of their last beat.
type leaseList struct {
	first, last *Delivery
	n           int
}

func (l *leaseList) push(d *Delivery) {
	// Beats come nearly in order: contact never goes back, and a beat is now.
	after := l.last
	for after != nil && after.beat > d.beat {
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

// lease begins a lease that was certainly young at the last proof of contact.
func (s *Session) lease(d *Delivery) {
	if d.fence.Store(int64(s.contact) + int64(s.cfg.AckWait)); s.fenced {
		d.fence.Store(0)
	}
	d.beat = s.contact
	s.leases.push(d)
}

// extended says that the server has answered a +WPI sent then. That extends our lease only if it cannot have been lost
// before the server had the +WPI, which it takes from anybody: on a link that stalls for longer than AckWait it would
// extend the lease of whoever has the message now.
func (s *Session) extended(d *Delivery, sent moment) {
	if fence := int64(sent) + int64(s.cfg.AckWait); d.state == live && !d.Fenced() && fence > d.fence.Load() {
		d.fence.Store(fence)
	}
}

// extend asks for more time for every live delivery that had no beat for a third of AckWait. A fenced delivery is
// not extended: another instance may have the message, and the extension would count for that instance.
func (s *Session) extend(now moment) {
	every := moment(s.cfg.AckWait/3 - burstEvery) // the tick may come that much late
	var out []outgoing
	s.mu.Lock()
	for d := s.leases.first; d != nil && now-d.beat >= every; {
		next := d.next
		if !d.fencedAt(now) {
			i := s.slots.use(d, now)
			d.twice = true
			out = append(out, outgoing{to: d.reply, reply: s.slots.token(s.prefix, i), payload: progressPayload})
		}
		s.leases.remove(d)
		d.beat = now
		s.leases.push(d)
		if next == nil || next.beat == now {
			break
		}
		d = next
	}
	s.mu.Unlock()
	s.post(out)
}
