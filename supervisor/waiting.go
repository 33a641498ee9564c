package supervisor

import "time"

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
	t.probe(k, "its wait is over")
}

// waitNamed is wait for as long as a handler says, which the end of an outage does not end.
func (t *turn) waitNamed(k *key, delay time.Duration, why string) {
	t.wait(k, delay, why)
	if w, waits := k.state.(*waiting); waits {
		w.named = true
	}
}

// wait lets nothing of k start for so long.
func (t *turn) wait(k *key, delay time.Duration, why string) {
	t.retire(k)
	k.flow = flowing{}
	k.until = t.now.Add(delay)
	k.move(&t.moment, &waiting{end: k.until}, why, delay)
	if t.cfg.Forward == ForwardStash {
		t.stashWindow(k)
		t.boundStash()
	} else {
		t.empty(&k.held, k, t.turnAway)
		t.empty(&k.returned, k, t.turnAway)
		t.empty(&k.fresh, k, t.turnAway)
	}
	t.alarm.wake(k, k.until)
}
