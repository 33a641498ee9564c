package supervisor

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
func (t *turn) roomForHangs() int {
	room := t.slots.all / 4
	for r := range t.slots.running.all() { // those that began first come first
		long := t.now.Sub(t.began(r)) >= longRun
		if room <= 1 || !long && !t.slots.terms.mixed() {
			break
		}
		if long && !r.again {
			room--
		}
	}
	return max(1, room)
}

// enoughHangs tells whether no more keys that hung before may start now.
func (t *turn) enoughHangs() bool { return t.slots.hangs.runs >= t.roomForHangs() }

// endHang counts a run out.
func (t *turn) endHang(r *run) {
	h := &t.slots.hangs
	if r.again {
		h.runs--
	}
	if h.keys.len() == 0 {
		return
	}
	for room := t.roomForHangs() - h.runs; room > 0 && h.keys.len() > 0; {
		if k := h.keys.pop(); t.keys[k.name] == k && k.messages() > 0 && (k.flows() || k.is(Probing)) {
			t.makeReady(k)
			room--
		}
	}
}
