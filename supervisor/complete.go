package supervisor

import (
	"context"
	"fmt"
	"time"
)

// complete takes the end of a run, and returns what its goroutine is to run next. With nil the goroutine ends.
func (g *Group) complete(r *run, res *result) *run {
	t := g.lock()
	if r.hung {
		t.stuck--
		t.unlock()
		return nil // it was counted out before
	}
	t.endRun(r)
	t.judge(r, res)
	r.cancel(context.Canceled) // whatever was derived from it
	t.attend(r.k)
	t.calm()
	next := t.next()
	t.startAll()
	t.tellMore()
	t.unlock()
	if next == nil {
		g.leave()
	}
	return next
}

// endRun gives the slot back.
func (t *turn) endRun(r *run) {
	if r.overdue {
		t.overdue.remove(r)
	} else {
		t.running.remove(r)
	}
	t.route.ended(r.epoch)
	t.endProbe(r)
	t.endRetry(r)
	k := r.k
	k.runs--
	if r.child != k.child {
		k.stale--
	}
	k.lastDone = t.now
	if k.stash.n > 0 || len(k.outside.absent) > 0 {
		t.progress = t.now
	}
	t.meter.done++
	t.releaseChild(r.child, k)
	t.touch(k)
}

// judge decides what the end of a run means for its message, its key and its route.
func (t *turn) judge(r *run, res *result) {
	k, m, v := r.k, r.m, res.verdict
	if v.Kind > Lost {
		v = Verdict{Kind: Retry, Err: fmt.Errorf("unknown verdict %v", v.Kind)} // loses nothing
	}
	// A run of an earlier child settles its own message and moves nothing.
	late := r.child != k.child
	if r.probe && k.probe == r {
		k.probe = nil
	}
	failed := res.crash != nil || v.Kind == Retry
	if !r.cancelled && v.Kind != Lost {
		t.judgeRetry(r, failed)
	}
	switch {
	case r.cancelled && failed:
		t.comeBack(k, m)
	case res.crash != nil:
		t.counts.Panics++
		panicked, _ := res.crash.(*PanicError)
		t.fail(r, failure{err: res.crash, stack: panicked.Stack, spend: true})
		if !late {
			t.stopped(k, res.crash, fmt.Sprintf("%s: %v", k.childName(), res.crash), true)
		}
		if !late || r.routeProbe > 0 {
			t.routeFailed(r, res.crash)
		}
	case v.Kind == Lost:
		t.settle(m, Outcome{Action: LetGo, Why: "its lease is lost"})
		if !v.Gone {
			t.away(m, t.now)
		}
	case v.FailRoute:
		t.comeBack(k, m)
		t.failRoute(v.Err)
	case v.Kind == Retry:
		if v.Err == nil {
			v.Err = r.Err()
		}
		t.failedRun(r, v, late)
	case v.Kind == Snooze:
		if t.opts.Ordered {
			m.Due = t.now.Add(v.Delay)
			t.keep(k, m)
		} else {
			t.giveBack(m, t.now.Add(max(v.Delay, minGiveBack)), "snoozed", v.Err)
			t.last().Snoozed = true
		}
	default:
		t.answered(r, v, late)
	}
	t.endRound(r, !r.cancelled && v.Kind != Snooze && v.Kind != Lost)
}

// answered is a success, or a verdict that is one for the key: the handler worked.
func (t *turn) answered(r *run, v Verdict, late bool) {
	k, m := r.k, r.m
	switch v.Kind {
	case Dead:
		m.Attempts++
		if m.FirstFailure.IsZero() {
			m.FirstFailure = t.now
		}
		t.settle(m, Outcome{Action: DeadLetter, Reason: ReasonDead, Err: v.Err})
	case Drop:
		t.settle(m, Outcome{Action: DropMessage, Err: v.Err})
	default:
		t.settle(m, Outcome{Action: AckMessage})
	}
	if late {
		if r.routeProbe > 0 {
			t.routeAnswered(r)
		}
		return
	}
	k.failures, k.several = 0, false
	if t.cfg.Reset == ResetSuccess {
		k.restarts = 0
	}
	switch {
	case k.state == Probing:
		k.tripped = false
		k.ramp = firstRamp
		t.move(k, Flowing, "the probe succeeded", 0)
	case k.ramp > 0:
		if k.ramp *= 2; k.ramp >= t.opts.Concurrency || k.stash.n == 0 {
			k.ramp = 0
		}
	}
	t.routeAnswered(r)
	if v.StopChild {
		t.cleanStop(k, v.Err)
	}
}

// failedRun is an error that a handler returned.
func (t *turn) failedRun(r *run, v Verdict, late bool) {
	k := r.k
	f := failure{err: v.Err, delay: v.Delay, paused: v.Pause, spend: !v.NotStarted}
	// While an outage is believed in, a probe that fails spends nothing: its message was only asked whether it is over.
	f.held = r.routeProbe > 0 || r.probe && k.tripped
	t.fail(r, f)
	if late {
		if r.routeProbe > 0 {
			t.routeFailed(r, v.Err)
		}
		return
	}
	if k.failures == 0 || t.now.Sub(k.failedAt) >= t.cfg.Window {
		k.failures, k.several, k.firstFail = 0, false, r.m.Sequence
	}
	k.failures++
	k.several = k.several || r.m.Sequence != k.firstFail
	k.failedAt, k.lastErr = t.now, v.Err
	if k.ramp > 0 {
		k.ramp = 1
	}

	pause := time.Duration(0)
	if v.Pause && v.Delay > 0 {
		pause = t.named(v.Delay)
	}
	trip := *t.cfg.TripAfter
	switch {
	case pause > 0 && t.cfg.RetryAfter == ScopeKey:
		k.tripped = true // the handler itself says that it is not the message
		t.wait(k, pause, fmt.Sprintf("Retry-After: %v", v.Err))
	case r.probe:
		t.again(k, fmt.Sprintf("the probe failed: %v", v.Err))
	case k.state == Flowing && trip > 0 && k.failures >= trip && (k.several || trip == 1):
		t.counts.Trips++
		k.tripped = k.several
		t.again(k, fmt.Sprintf("%d failures in a row: %v", k.failures, v.Err))
	}
	if pause > 0 && t.cfg.RetryAfter == ScopeRoute {
		t.pauseRoute(pause, v.Err)
		return
	}
	t.routeFailed(r, v.Err)
}

// maxNamed clamps a delay that a handler names.
const maxNamed = time.Hour

func (t *turn) named(d time.Duration) time.Duration {
	return max(min(d, maxNamed), min(t.opts.Retry.Min, maxNamed))
}

type failure struct {
	err    error
	stack  []byte
	spend  bool          // an attempt
	held   bool          // a failed probe: stays in the stash
	hung   bool          // its bytes are still in use: it must come again with its own
	delay  time.Duration // named by the handler; 0: by the policy
	paused bool          // the key or the route waits for as long
}

// fail settles a message that failed, or keeps it.
func (t *turn) fail(r *run, f failure) {
	k, m := r.k, r.m
	if f.spend && !f.held {
		m.Attempts++
	}
	if m.FirstFailure.IsZero() {
		m.FirstFailure = t.now
	}
	delay := t.opts.Retry.Delay(max(0, m.Attempts-1))
	if f.delay > 0 {
		delay = t.named(f.delay)
	}
	m.unsaved, m.LastErr = true, f.err
	// A probe that named a time of its own would be asked again before it.
	stays := f.held && t.cfg.Forward == ForwardStash && (f.delay == 0 || f.paused)
	switch {
	case t.spent(m):
		t.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExhausted, Err: f.err, Stack: f.stack})
	case t.expired(m):
		t.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExpired, Err: f.err, Stack: f.stack})
	case (stays || t.opts.Ordered) && !f.hung:
		if f.held {
			m.probes++
		}
		switch {
		case !f.held || f.delay > 0:
			m.Due = t.now.Add(delay)
		case !t.opts.Ordered:
			// Its own delay for when its key flows again. As a probe it may be asked before.
			m.Due = t.now.Add(t.opts.Retry.Delay(m.Attempts + m.probes - 1))
		}
		t.keep(k, m)
		if f.spend && !f.held {
			t.remember(m)
		}
	default:
		due := t.now.Add(delay)
		t.settle(m, Outcome{Action: RetryLater, Due: due, Err: f.err, Stack: f.stack})
		t.away(m, due)
	}
}

// comeBack takes in a message whose run was cancelled: no attempt is spent.
func (t *turn) comeBack(k *key, m *Message) {
	if k.state == Waiting && t.cfg.Forward != ForwardStash {
		t.giveBack(m, k.until, "its child was stopped", k.lastErr)
		return
	}
	t.keep(k, m)
}

// keep puts a message that was started back to those that wait.
func (t *turn) keep(k *key, m *Message) {
	switch {
	case t.closing, t.paused, t.keys[k.name] != k: // k ended meanwhile, and its messages made a new supervisor
		t.deliver(m)
	case k.state == Suspended:
		t.refuse(k, m)
	default:
		t.putStash(k, m)
		t.bound()
	}
}

// countStuck stops the route when too many goroutines do not come back.
func (t *turn) countStuck() {
	t.counts.Hangs++
	if t.stuck > t.cfg.MaxStuck {
		t.failRoute(fmt.Errorf("%d handlers ignore their timeout (max_stuck is %d)", t.stuck, t.cfg.MaxStuck))
	}
}

// hang gives up a run whose handler ignores the end of its context. Its goroutine stays behind.
func (t *turn) hang(r *run) {
	late := r.child != r.k.child
	t.endRun(r)
	r.hung = true
	t.stuck++
	t.group.leave()
	if r.probe && r.k.probe == r {
		r.k.probe = nil
	}
	err := fmt.Errorf("%w of %v", ErrHandlerHung, t.opts.Timeout)
	t.judgeRetry(r, true)
	if r.cancelled {
		// The bytes may still be in use there: the message must come again with its own.
		t.giveBack(r.m, t.now.Add(minGiveBack), "its child was stopped", err)
	} else {
		t.fail(r, failure{err: err, spend: true, hung: true})
	}
	if !late {
		t.stopped(r.k, err, fmt.Sprintf("%s was abandoned: %v", r.k.childName(), err), true)
	}
	if !late || r.routeProbe > 0 {
		t.routeFailed(r, err)
	}
	t.countStuck()
	t.endRound(r, true)
	t.attend(r.k)
	t.calm()
}
