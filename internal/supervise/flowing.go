package supervise

import (
	"fmt"
	"time"
)

// flowing: the messages of the key start as they come.
type flowing struct {
	// ramp is how many may run at once after a wait; it doubles with each success. 0: there is no bound.
	ramp int
}

// firstRamp is how many messages may run at once after a probe succeeded: the next ones double it.
const firstRamp = 2

func (*flowing) is() State                          { return Flowing }
func (*flowing) until() time.Time                   { return time.Time{} }
func (*flowing) attend(*turn, *key)                 {}
func (*flowing) accepts(*turn, *key, *Message) bool { return true }
func (*flowing) started(*key, *run)                 {}
func (*flowing) born(*turn, *key)                   {}

func (*flowing) choose(t *turn, k *key, from line) *Message {
	switch {
	case t.opts.Ordered:
		return t.order.head(k)
	case from == fresh && k.fresh.n == 0:
		return k.newHeld()
	case from == fresh:
		return k.fresh.first()
	case k.held.n > 0:
		return k.held.first()
	}
	return k.returned.first()
}

func (*flowing) candidate(t *turn, k *key, with past) *Message { return t.order.askable(k, with) }

func (s *flowing) answered(t *turn, k *key) {
	if s.ramp > 0 {
		if s.ramp *= 2; s.ramp >= t.opts.Concurrency || k.held.n == 0 {
			s.ramp = 0
		}
	}
}

// failed trips the key when so many failures followed each other that it is not the messages.
func (s *flowing) failed(t *turn, k *key, err error) {
	s.ramp = min(s.ramp, 1)
	trip := *t.cfg.TripAfter
	elsewhere := t.route.peers.elsewhere(k)
	if !elsewhere && (trip == 0 || k.failures < trip || !k.several && trip > 1) && (k.failures < 2 || !t.fallback.Waiting || !t.route.failsAgain(k)) {
		t.route.peers.hintKeyFails(k)
		return
	}
	t.counts.Trips++
	k.tripped = k.several || elsewhere
	why := fmt.Sprintf("%d failures in a row", k.failures)
	if elsewhere {
		why = fmt.Sprintf("%d failures in a row, and those of other instances", k.failures)
	}
	k.again(t, fmt.Sprintf("%s: %v", why, err))
	if k.tripped {
		t.route.peers.hintKey(k)
	}
}
