package ack

import "time"

// The server looks for what is due ten milliseconds after the last delayed NAK, and when the first one is due. With more
// than 1,024 messages outstanding it gives up as soon as an ack arrives meanwhile, and begins anew a tenth of a second
// later (nats-server, consumer.go, processNak and checkPending): beside 20,000 acks a second retries came half a second late,
// and beside some thousand more outstanding a second and a half. So acks stay in the outbox while it looks after a burst.
// The answer to the last NAK of that tells when the ten milliseconds began. Acks of other instances come all the same.
const (
	scanned  = 1024 // outstanding messages, above which an ack has the server give up
	quietFor = 20 * time.Millisecond
	// tooFar is a round trip after which acks that left before the answer came arrive when the server looks.
	tooFar = 8 * time.Millisecond
)

// expectQuiet has acks kept back when the answer to d has come, the last NAK with a delay of a burst; the lock is held.
func (s *Session) expectQuiet(d *Delivery) {
	if s.pending > scanned {
		s.lastNak = d
	}
}

// mayBeQuiet is told that the NAK of d was answered; the lock is held.
func (s *Session) mayBeQuiet(d *Delivery, sent moment) {
	if d != s.lastNak {
		return
	}
	s.lastNak = nil
	s.nearest = min(s.nearest, s.now()-sent) // a server with much to do answers late, and looks late
	if s.nearest > moment(tooFar) {
		return
	}
	s.acks.held = true
	select {
	case s.quiet <- struct{}{}: // Run ends it
	default:
	}
}

// endQuiet sends the acks that were kept back.
func (s *Session) endQuiet() {
	s.mu.Lock()
	s.acks.held, s.lastNak = false, nil
	s.flush()
}
