package supervise

import (
	"time"
)

// waiting: nothing of the key starts until its backoff is over. Its child has ended.
type waiting struct {
	still
	end   time.Time
	named bool // by a handler
}

func (*waiting) is() State          { return Waiting }
func (s *waiting) until() time.Time { return s.end }

func (s *waiting) attend(t *turn, k *key) {
	if t.now.Before(s.end) {
		t.alarm.wake(k, s.end)
		return
	}
	k.probe(t, "its wait is over")
}

// waitNamed is wait for as long as a handler says, which the end of an outage does not end.
func (k *key) waitNamed(t *turn, delay time.Duration, why string) {
	k.wait(t, delay, why)
	if w, waits := k.state.(*waiting); waits {
		w.named = true
	}
}

// wait lets nothing of k start for so long.
func (k *key) wait(t *turn, delay time.Duration, why string) {
	t.nursery.retire(t, k)
	k.flow = flowing{}
	k.until = t.now.Add(delay)
	k.move(&t.moment, &waiting{end: k.until}, why, delay)
	if t.cfg.Forward == forwardStash {
		k.stashWindow(t)
		t.stash.bound(t)
	} else {
		k.empty(t, &k.held, t.turnAway)
		k.empty(t, &k.returned, t.turnAway)
		k.empty(t, &k.fresh, t.turnAway)
	}
	t.alarm.wake(k, k.until)
}
