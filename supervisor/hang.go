package supervisor

import (
	"fmt"
	"time"
)

// hangGrace is how long a handler may take to return after its context ended. It begins when that was noticed: a process that
// was stopped for longer (SIGSTOP, a virtual machine that moves) would take all its handlers for hung.
const hangGrace = time.Second

// endOverdue cancels the runs that are past their deadline and gives up those that did not care, and the factories.
func (t *turn) endOverdue() {
	running, overdue := &t.slots.running, &t.slots.overdue
	for r := running.first(); r != nil && !t.now.Before(r.deadline); r = running.first() {
		running.remove(&r.place)
		overdue.push(&r.place, r)
		r.wasLate(t.now.Sub(r.deadline))
		r.cancel(timedOut)
	}
	for r := overdue.first(); r != nil && !t.now.Before(r.hangs()); r = overdue.first() {
		t.hang(r)
	}
	for _, b := range t.slots.births {
		if !b.overdue && !t.now.Before(b.deadline) {
			b.overdue, b.late = true, t.now.Sub(b.deadline)
		}
	}
	for births := &t.slots.births; len(*births) > 0 && (*births)[0].overdue && !t.now.Before((*births)[0].next()); {
		t.hangBirth((*births)[0])
	}
}

// hang gives up a run whose handler ignores the end of its context. Its goroutine stays behind.
func (t *turn) hang(r *run) {
	t.abandon(r)
	err := fmt.Errorf("%w of %v", ErrHandlerHung, t.slots.timeout(r))
	if !t.nursery.former(r) {
		t.slots.judgeRetry(r, Retry)
	}
	if !r.cancelled && !t.nursery.former(r) {
		t.route.hear(r, Verdict{NotStarted: true})
	}
	if r.cancelled {
		// The bytes may still be in use there: the message must come again with its own.
		t.giveBack(r.m, t.now.Add(minGiveBack), "its child was stopped", err)
	} else {
		t.fail(r, failure{err: err, spend: true, hung: true})
	}
	if !r.late {
		t.stopped(r.k, crashed, err, fmt.Sprintf("%s was abandoned: %v", r.k.childName(), err))
	}
	if !r.late || r.round > 0 {
		t.routeFailed(r, err)
	}
	t.countStuck(t.nursery.former(r))
	t.endRound(r, something)
	t.attend(r.k)
	t.calm()
}

// abandon takes its slot from a run that does not return.
func (t *turn) abandon(r *run) {
	t.endRun(r)
	r.hung = true
	t.slots.stuck++
	t.group.leave()
}

// countStuck stops the route when too many goroutines do not come back. What a former handler does is no reason to stop that of now.
func (t *turn) countStuck(former bool) {
	t.counts.Hangs++
	if !former && t.slots.stuck > t.cfg.MaxStuck {
		t.failRoute(fmt.Errorf("%d handlers ignore their timeout (max_stuck is %d)", t.slots.stuck, t.cfg.MaxStuck))
	}
}
