package supervise

import (
	"fmt"
	"time"
)

// routeWaiting: nothing of the route starts until the wait is over. A probe of an earlier round that still runs may end it.
type routeWaiting struct {
	began, until time.Time
	standBy      time.Duration // how much longer it waits while another instance asks
}

func (*routeWaiting) is() State                 { return Waiting }
func (*routeWaiting) next(*turn) *run           { return nil }
func (*routeWaiting) failed(*turn, *run, error) {}

// accepts what is to be asked when the wait is over.
func (*routeWaiting) accepts(t *turn, k *key, m *Message) bool {
	return !t.route.dropsWhatWaits() && t.route.mayBeAsked(k, m, t.route.inquiry.readyToAsk(t, m))
}

func (*routeWaiting) answered(t *turn, r *run) { r.probeAnswered(t) }

// attend begins a round of probes when the wait is over.
func (s *routeWaiting) attend(t *turn) {
	if t.now.Before(s.until) {
		return
	}
	if most := 2 * t.cfg.MaxStuck; t.slots.stuck > most {
		// Each probe could leave one more behind.
		t.route.again(t, fmt.Sprintf("stopped: %d handlers ignore their timeout; the next probe starts once no more than %d do", t.slots.stuck, most))
		return
	}
	t.route.beginRound("its wait is over")
	t.call(t.opts.More)
}

// again makes the route wait for its next question, longer each time.
func (s *route) again(t *turn, why string) {
	delay := t.cfg.Restart.Delay(s.restarts)
	most := max(judgedEvery, t.cfg.Restart.Min)
	if s.inquiry.quiet || s.inquiry.careful {
		most = rudeEvery
	}
	if s.restarts < 1<<30 {
		s.restarts++
	}
	s.wait(t, min(delay, most), why)
	if k := s.inquiry.askableNow(t, unjudged); k != nil {
		s.hurry(k.name)
	} else if t.aside.fresh.n > 0 {
		s.hurry("")
	}
}

// pause is a Retry-After that stands for the whole route.
func (s *route) pause(t *turn, pause time.Duration, err error) {
	s.lastErr = err
	s.notBefore = later(s.notBefore, t.now.Add(pause))
	if s.is() != Waiting || s.until().Before(s.notBefore) {
		s.wait(t, pause, fmt.Sprintf("Retry-After: %v", err))
	}
}

// wait lets nothing of the route start for so long. What is in the window moves to the stash.
func (s *route) wait(t *turn, delay time.Duration, why string) {
	w := &routeWaiting{began: t.now, until: later(t.now.Add(delay), s.notBefore)}
	flowed := s.flows()
	s.evidence.clear()
	s.move(w, why, delay)
	t.slots.closed = true
	for _, from := range []line{returned, fresh} { // what is here for the first time is to be the newest
		for q := &t.slots.ready[from]; q.len() > 0; {
			q.pop().stashWindow(t)
		}
	}
	// Keys at their limit, or without a child yet, are in no queue.
	for _, k := range t.keys {
		if t.window.messages == 0 {
			break
		}
		k.stashWindow(t)
	}
	t.stash.bound(t)
	t.fallback.offerAll(t)
	if flowed {
		for k := range t.stash.keys.all() {
			s.inquiry.line(t, k)
		}
	}
	t.alarm.arm(w.until)
	t.call(t.opts.More) // there may be room for messages that nobody has judged
}

// hurry shortens the wait of the route for a message of the key that nobody has judged.
func (s *route) hurry(key string) {
	w, ok := s.state.(*routeWaiting)
	if !ok {
		return
	}
	most := askEvery
	if q := &s.inquiry; q.quiet || q.careful {
		most = rudeEvery
	} else if s.doubt && s.evidence.good.has(key) {
		most = min(most, s.cfg.Restart.Delay(0)) // bad messages of others may be all that the route waits for
	}
	if soonest := later(w.began.Add(most+w.standBy), s.notBefore); soonest.Before(w.until) {
		w.until = later(soonest, s.now)
		s.alarm.arm(w.until)
	}
}
