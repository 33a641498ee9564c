package ack

import "time"

// The server looks for what is due ten milliseconds after the last delayed NAK, or when the first one is due. With more
// than 1,024 messages outstanding it gives up as soon as an ack arrives meanwhile, and begins anew a tenth of a second
// later (nats-server, consumer.go, processNak and checkPending): beside 20,000 acks a second retries came half a second late,
// and beside some thousand more outstanding a second and a half. So acks stay here for a moment when it is about to look.
const (
	scanned = 1024 // outstanding messages, above which an ack has the server give up
	// By its answer the server has taken the last NAK of a burst. What is on its way arrives before it looks.
	quietAfter = 3 * time.Millisecond
	quietFor   = 14 * time.Millisecond
)

// expectQuiet has acks kept back when the answer to d has come; the lock is held.
func (s *Session) expectQuiet(d *Delivery) {
	if s.pending > scanned {
		s.lastNak = d
	}
}

// mayBeQuiet is told that d was answered; the lock is held.
func (s *Session) mayBeQuiet(d *Delivery) {
	if d != s.lastNak {
		return
	}
	s.lastNak = nil
	select {
	case s.quiet <- struct{}{}:
	default:
	}
}

// hush keeps acks back from now on, or sends those that were.
func (s *Session) hush(on bool) {
	s.mu.Lock()
	s.acks.held = on
	s.flush()
}
