package supervise

import "time"

// hangs keeps keys whose last run got no answer in time from taking the slots. What hangs for the first time cannot be known, so those
// that hung before have what is left of a quarter: while others have run for long, one slot.
type hangs struct {
	runs int
	keys queue // which have to wait
}

// longRun is how long a run of a key that never hung may take until it counts with those that hang.
const longRun = time.Second

// roomForHangs is how many keys that hung before may run at once now.
func (s *slots) roomForHangs() int {
	room := s.all / 4
	for r := range s.running.all() { // those that began first come first
		long := s.now.Sub(s.began(r)) >= longRun
		if room <= 1 || !long && !s.terms.mixed() {
			break
		}
		if long && !r.again {
			room--
		}
	}
	return max(1, room)
}

// enoughHangs tells whether no more keys that hung before may start now.
func (s *slots) enoughHangs() bool { return s.hangs.runs >= s.roomForHangs() }

// endHang counts a run out.
func (s *slots) endHang(r *run) {
	h := &s.hangs
	if r.again {
		h.runs--
	}
	if h.keys.len() == 0 {
		return
	}
	for room := s.roomForHangs() - h.runs; room > 0 && h.keys.len() > 0; {
		if k := h.keys.pop(); !k.gone && k.messages() > 0 && (k.flows() || k.is(Probing)) {
			s.queue(k)
			room--
		}
	}
}
