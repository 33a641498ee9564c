package supervise

import "time"

// terms are the timeouts of a route: that of now, and those with which something runs that began before a change. A run has the number
// of its own: it is part of what each message allocates.
type terms struct {
	now  uint8
	each []term
}

type term struct {
	timeout time.Duration
	runs    int
}

// change makes that timeout the one of now.
func (s *terms) change(timeout time.Duration) {
	free := len(s.each)
	for i, e := range s.each {
		if e.timeout == timeout {
			s.now = uint8(i)
			return
		}
		if e.runs == 0 {
			free = i
		}
	}
	switch {
	case free < len(s.each):
	case free < 256:
		s.each = append(s.each, term{})
	default:
		free = int(s.now) // so many timeouts at once: some runs seem to have begun at another time
	}
	s.each[free].timeout, s.now = timeout, uint8(free)
}

// begin counts a run in, and returns its number.
func (s *terms) begin() uint8 {
	s.each[s.now].runs++
	return s.now
}

func (s *terms) end(n uint8) { s.each[n].runs-- }

// mixed tells whether something runs with another timeout than that of now.
func (s *terms) mixed() bool {
	for i, e := range s.each {
		if e.runs > 0 && i != int(s.now) {
			return true
		}
	}
	return false
}

// timeout is that of r.
func (s *slots) timeout(r *run) time.Duration { return s.terms.each[r.term].timeout }
