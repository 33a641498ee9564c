package ack

import (
	"runtime"
	"slices"
)

// acks sends the acks of a session, in the order of its outbox, and knows which of them an answer confirms.
//
// At most one ack at a time waits for an answer of its own. The server takes the acks of one connection in the order in
// which they were sent (nats-server, processInboundAcks: one queue, one goroutine), so the answer also confirms the acks
// without a reply that were sent before on the same connection; at full speed those are some hundred. Not so an ack of a
// higher sequence than the answered one: a leader that has just been elected drops, without an answer, those it believes
// were never delivered (processAckMsg). And not when the leader of the durable changed in between, which drains the
// queue: see Session.LeaderChanged.
type acks struct {
	outbox []*Delivery // to be sent
	open   []*Delivery // sent without a reply, and not covered by one yet
	opened moment      // when the first of open was sent, or before
	unsure []*Delivery // sent perhaps; nothing will confirm them but an ack that is sent again

	sending bool        // somebody empties the outbox, or is about to
	runs    bool        // Run has a goroutine for it
	held    bool        // nobody may for the moment; see quiet.go
	paused  bool        // nobody may until Resume
	waiting int32       // the slot of the ack that waits for an answer; noSlot if none does
	covers  []*Delivery // what that answer confirms beside
	link    uint64      // which connection it was when the last ack with a reply had been sent

	spare    []*Delivery // outbox, while that is being sent
	subjects []string    // of what is being sent
}

// Where a delivery is whose ack is not confirmed, if not in a slot.
const (
	noSlot   int32 = -1 // in none
	inOutbox int32 = -2
	inOpen   int32 = -3
	inUnsure int32 = -4
)

// queue puts an ack into the outbox; the lock is held.
func (s *Session) queue(d *Delivery) {
	a := &s.acks
	if d.slot == inOutbox {
		return
	}
	if i := a.waiting; i != noSlot && d.slot == i && s.slots.table[i].delivery == d {
		// The delivery is acked again before the server answered its first ack, so the next ack asks for an answer instead.
		s.uncover(func(c *Delivery) {
			c.slot = inOpen
			a.open, a.opened = append(a.open, c), min(a.opened, c.beat)
		})
	}
	d.slot = inOutbox
	a.outbox = append(a.outbox, d)
}

// flush has what is in the outbox sent, unless somebody is at it, or nobody may be. It is called with the lock, and returns without it.
// While the session runs it does not send itself: see sendAcks.
func (s *Session) flush() {
	a := &s.acks
	if a.sending || a.held || a.paused || len(a.outbox) == 0 {
		s.mu.Unlock()
		return
	}
	a.sending = true
	if a.runs {
		s.onward <- struct{}{} // does not block: it has room for one, and sending is set once
		s.mu.Unlock()
		return
	}
	s.send()
}

// sendAcks sends the acks while the session runs. It lets all goroutines that are ready to run go first: the answers that come together
// to many handlers make many acks, which so leave in one piece. Sent by each handler itself, most acks were a write to the
// connection of their own.
func (s *Session) sendAcks() {
	for range s.onward {
		runtime.Gosched()
		s.mu.Lock()
		s.send()
	}
}

// send empties the outbox for whoever has set sending. It is called with the lock, and returns without it.
func (s *Session) send() {
	a := &s.acks
	for len(a.outbox) > 0 && !a.held && !a.paused {
		batch := s.pack()
		reply := s.cover(batch)
		subjects, link, ok := a.subjects, a.link, true
		s.mu.Unlock()
		for i, subject := range subjects {
			r := ""
			if i == len(subjects)-1 {
				r = reply
			}
			ok = s.publish(subject, r, ackPayload) && ok
		}
		if reply != "" || !ok {
			link = s.cfg.Link()
		}
		s.mu.Lock()
		if !ok || link != a.link {
			a.link = link
			s.distrust()
		}
		clear(batch)
		a.spare = batch
	}
	a.sending = false
	s.mu.Unlock()
}

// pack takes what is to be sent out of the outbox, the highest sequence last.
func (s *Session) pack() []*Delivery {
	a := &s.acks
	batch := a.outbox
	a.outbox = a.spare[:0]
	batch = slices.DeleteFunc(batch, func(d *Delivery) bool { return d.slot != inOutbox })
	a.subjects = a.subjects[:0]
	if len(batch) == 0 {
		return batch
	}
	last, most := len(batch)-1, 0
	for i, d := range batch {
		if d.Sequence > batch[most].Sequence {
			most = i
		}
	}
	batch[most], batch[last] = batch[last], batch[most]
	for _, d := range batch {
		a.subjects = append(a.subjects, d.reply)
	}
	return batch
}

// cover adds the batch to those that are sent without a reply or, if no ack waits for an answer, has its last one ask
// for it, and returns the subject of that answer.
func (s *Session) cover(batch []*Delivery) (reply string) {
	a := &s.acks
	if len(batch) == 0 {
		return ""
	}
	now := s.now()
	if len(a.open) == 0 {
		a.opened = now
	}
	for _, d := range batch {
		d.slot, d.beat = inOpen, now
	}
	if a.waiting != noSlot {
		a.open = append(a.open, batch...)
		return ""
	}
	last := len(batch) - 1
	carrier := batch[last]
	a.open = append(a.open, batch[:last]...)
	i := s.slots.settles(carrier, now)
	a.waiting, carrier.slot = i, i
	rest := a.open[:0]
	for _, d := range a.open {
		switch {
		case d.slot != inOpen:
		case d.Sequence < carrier.Sequence:
			d.slot = i
			a.covers = append(a.covers, d)
		default:
			rest = append(rest, d)
		}
	}
	clear(a.open[len(rest):])
	a.open, a.opened = rest, now
	for _, d := range rest {
		a.opened = min(a.opened, d.beat)
	}
	return s.slots.token(s.prefix, i)
}

// distrust takes all that was sent and is not confirmed for perhaps lost: it may have been sent on a connection that is
// gone, or to a leader that is none any more.
func (s *Session) distrust() {
	a := &s.acks
	for _, d := range a.open {
		if d.slot == inOpen {
			s.doubt(d)
		}
	}
	clear(a.open)
	a.open = a.open[:0]
	s.uncover(s.doubt)
}

// doubt has an ack sent again.
func (s *Session) doubt(d *Delivery) {
	d.slot = inUnsure
	s.acks.unsure = append(s.acks.unsure, d)
}

// uncover frees the slot of the ack that waits for an answer, if one does, and does this to it and to all that it covers.
func (s *Session) uncover(do func(*Delivery)) {
	a := &s.acks
	i := a.waiting
	if i == noSlot {
		return
	}
	list := append(a.covers, s.slots.table[i].delivery)
	list = slices.DeleteFunc(list, func(d *Delivery) bool { return d.slot != i })
	a.waiting, a.covers = noSlot, nil
	s.slots.free(i)
	for _, d := range list {
		do(d)
	}
	clear(list) // it must keep nothing alive
	a.covers = list[:0]
}

// closeUp has the last acks confirmed when no further one follows that could do it.
func (s *Session) closeUp() {
	a := &s.acks
	s.mu.Lock()
	var most *Delivery
	if a.waiting == noSlot && len(a.outbox) == 0 {
		for _, d := range a.open {
			if d.slot == inOpen && (most == nil || d.Sequence > most.Sequence) {
				most = d
			}
		}
	}
	if most == nil {
		s.mu.Unlock()
		return
	}
	s.queue(most)
	s.flush()
}

// requeue sends again all acks that were sent before that moment and are not confirmed; the lock is held, and what is
// put into the outbox must be flushed.
func (s *Session) requeue(before moment) {
	a := &s.acks
	if i := a.waiting; i != noSlot && s.slots.table[i].sent < before || len(a.open) > 0 && a.opened < before {
		s.distrust()
	}
	for _, d := range a.unsure {
		if d.slot == inUnsure {
			s.stats.Resent++
			s.queue(d)
		}
	}
	clear(a.unsure)
	a.unsure = a.unsure[:0]
}

// overdueAcks tells whether requeue has something to do.
func (s *Session) overdueAcks(before moment) bool {
	a := &s.acks
	return len(a.unsure) > 0 || len(a.open) > 0 && a.opened < before
}
