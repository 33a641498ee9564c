package supervise

import (
	"fmt"
	"time"
)

// hangGrace is how long a handler may take to return after its context ended. It begins when that was noticed: a process that
// was stopped for longer (SIGSTOP, a virtual machine that moves) would take all its handlers for hung.
const hangGrace = time.Second

// endOverdue cancels the runs that are past their deadline and gives up those that did not care, and the factories.
func (s *slots) endOverdue(t *turn) {
	running, overdue := &s.running, &s.overdue
	for r := running.first(); r != nil && !t.now.Before(r.deadline); r = running.first() {
		running.remove(&r.place)
		overdue.push(&r.place, r)
		r.wasLate(t.now.Sub(r.deadline))
		r.cancel(timedOut)
	}
	for r := overdue.first(); r != nil && !t.now.Before(r.hangs()); r = overdue.first() {
		r.hang(t)
	}
	for _, b := range s.births {
		if !b.overdue && !t.now.Before(b.deadline) {
			b.overdue, b.late = true, t.now.Sub(b.deadline)
		}
	}
	for births := &s.births; len(*births) > 0 && (*births)[0].overdue && !t.now.Before((*births)[0].next()); {
		t.nursery.hangBirth(t, (*births)[0])
	}
}

// hang gives up a run whose handler ignores the end of its context. Its goroutine stays behind.
func (r *run) hang(t *turn) {
	r.abandon(t)
	err := fmt.Errorf("%w of %v", ErrHandlerHung, t.slots.timeout(r))
	if !t.nursery.former(r) {
		t.slots.judgeRetry(r, Retry)
	}
	if !r.cancelled && !t.nursery.former(r) {
		t.route.hear(r, Verdict{NotStarted: true})
	}
	if r.cancelled {
		t.giveBack(r.m, t.now.Add(minGiveBack), "its child was stopped", err)
		t.last().inUse = true
	} else {
		r.fail(t, failure{err: err, spend: true, hung: true})
	}
	if !r.late {
		r.k.stopped(t, crashed, err, fmt.Sprintf("%s was abandoned: %v", r.k.childName(), err))
	}
	if !r.late || r.round > 0 {
		t.route.failed(t, r, err)
	}
	t.counts.Hangs++
	if !t.nursery.former(r) {
		t.slots.boundStuck(t)
	}
	r.endRound(t, something)
	r.k.attend(t)
	t.calm()
}

// abandon takes its slot from a run that does not return.
func (r *run) abandon(t *turn) {
	r.end(t)
	r.hung = true
	t.slots.stuck++
	t.group.leave()
}

// boundStuck stops the route when too many goroutines do not come back. It is not called for one of a former handler: what that does is no reason to stop
// that of now.
func (s *slots) boundStuck(t *turn) {
	if s.stuck > t.cfg.MaxStuck {
		t.route.stop(t, fmt.Errorf("%d handlers ignore their timeout (max_stuck is %d)", s.stuck, t.cfg.MaxStuck))
	}
}
