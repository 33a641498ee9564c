package supervisor

import (
	"context"
	"fmt"
	"time"
)

// complete takes the end of a run, and returns what its goroutine is to run next. With nil the goroutine ends.
func (g *Group) complete(r *run, res *result) *run {
	var fx effects
	now := g.lock()
	if r.hung {
		g.stuck--
		g.mu.Unlock()
		return nil // it was counted out before
	}
	g.endRun(r, now)
	g.judge(r, res, now, &fx)
	r.cancel(context.Canceled) // whatever was derived from it
	g.attend(r.k, now, &fx)
	g.calm()
	next := g.next(now)
	g.startAll(now)
	g.tellMore(&fx)
	g.unlock(&fx)
	if next == nil {
		g.leave()
	}
	return next
}

// endRun gives the slot back.
func (g *Group) endRun(r *run, now time.Time) {
	if r.overdue {
		g.overdue.remove(r)
	} else {
		g.running.remove(r)
	}
	g.route.ended(r.epoch)
	g.endProbe(r)
	g.endRetry(r)
	k := r.k
	k.runs--
	if r.child != k.child {
		k.stale--
	}
	k.lastDone = now
	if k.stash.n > 0 || len(k.outside.absent) > 0 {
		g.progress = now
	}
	g.meter.done++
	r.child.release(g, k)
	g.touch(k, now)
}

// judge decides what the end of a run means for its message, its key and its route.
func (g *Group) judge(r *run, res *result, now time.Time, fx *effects) {
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
		g.judgeRetry(r, failed)
	}
	switch {
	case r.cancelled && failed:
		g.comeBack(k, m, now, fx)
	case res.crash != nil:
		g.counts.Panics++
		panicked, _ := res.crash.(*PanicError)
		g.fail(r, failure{err: res.crash, stack: panicked.Stack, spend: true}, now, fx)
		if !late {
			g.stopped(k, res.crash, fmt.Sprintf("%s: %v", k.childName(), res.crash), true, now, fx)
		}
		if !late || r.routeProbe > 0 {
			g.routeFailed(r, res.crash, now, fx)
		}
	case v.Kind == Lost:
		fx.settle(m, Outcome{Action: LetGo, Why: "its lease is lost"})
		if !v.Gone {
			g.away(m, now)
		}
	case v.FailRoute:
		g.comeBack(k, m, now, fx)
		g.failRoute(v.Err, now, fx)
	case v.Kind == Retry:
		if v.Err == nil {
			v.Err = r.Err()
		}
		g.failedRun(r, v, late, now, fx)
	case v.Kind == Snooze:
		if g.opts.Ordered {
			m.Due = now.Add(v.Delay)
			g.keep(k, m, now, fx)
		} else {
			g.giveBack(m, now.Add(max(v.Delay, minGiveBack)), now, "snoozed", v.Err, fx)
			fx.last().Snoozed = true
		}
	default:
		g.answered(r, v, late, now, fx)
	}
	g.endRound(r, !r.cancelled && v.Kind != Snooze && v.Kind != Lost, now, fx)
}

// answered is a success, or a verdict that is one for the key: the handler worked.
func (g *Group) answered(r *run, v Verdict, late bool, now time.Time, fx *effects) {
	k, m := r.k, r.m
	switch v.Kind {
	case Dead:
		m.Attempts++
		if m.FirstFailure.IsZero() {
			m.FirstFailure = now
		}
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonDead, Err: v.Err})
	case Drop:
		fx.settle(m, Outcome{Action: DropMessage, Err: v.Err})
	default:
		fx.settle(m, Outcome{Action: AckMessage})
	}
	if late {
		if r.routeProbe > 0 {
			g.routeAnswered(r, now, fx)
		}
		return
	}
	k.failures, k.several = 0, false
	if g.cfg.Reset == ResetSuccess {
		k.restarts = 0
	}
	switch {
	case k.state == Probing:
		k.tripped = false
		k.ramp = firstRamp
		g.move(k, Flowing, "the probe succeeded", 0, now, fx)
	case k.ramp > 0:
		if k.ramp *= 2; k.ramp >= g.opts.Concurrency || k.stash.n == 0 {
			k.ramp = 0
		}
	}
	g.routeAnswered(r, now, fx)
	if v.StopChild {
		g.cleanStop(k, v.Err, now, fx)
	}
}

// failedRun is an error that a handler returned.
func (g *Group) failedRun(r *run, v Verdict, late bool, now time.Time, fx *effects) {
	k := r.k
	f := failure{err: v.Err, delay: v.Delay, paused: v.Pause, spend: !v.NotStarted}
	// While an outage is believed in, a probe that fails spends nothing: its message was only asked whether it is over.
	f.held = r.routeProbe > 0 || r.probe && k.tripped
	g.fail(r, f, now, fx)
	if late {
		if r.routeProbe > 0 {
			g.routeFailed(r, v.Err, now, fx)
		}
		return
	}
	if k.failures == 0 || now.Sub(k.failedAt) >= g.cfg.Window {
		k.failures, k.several, k.firstFail = 0, false, r.m.Sequence
	}
	k.failures++
	k.several = k.several || r.m.Sequence != k.firstFail
	k.failedAt, k.lastErr = now, v.Err
	if k.ramp > 0 {
		k.ramp = 1
	}

	pause := time.Duration(0)
	if v.Pause && v.Delay > 0 {
		pause = g.named(v.Delay)
	}
	trip := *g.cfg.TripAfter
	switch {
	case pause > 0 && g.cfg.RetryAfter == ScopeKey:
		k.tripped = true // the handler itself says that it is not the message
		g.wait(k, pause, fmt.Sprintf("Retry-After: %v", v.Err), now, fx)
	case r.probe:
		g.again(k, fmt.Sprintf("the probe failed: %v", v.Err), now, fx)
	case k.state == Flowing && trip > 0 && k.failures >= trip && (k.several || trip == 1):
		g.counts.Trips++
		k.tripped = k.several
		g.again(k, fmt.Sprintf("%d failures in a row: %v", k.failures, v.Err), now, fx)
	}
	if pause > 0 && g.cfg.RetryAfter == ScopeRoute {
		g.pauseRoute(pause, v.Err, now, fx)
		return
	}
	g.routeFailed(r, v.Err, now, fx)
}

// maxNamed clamps a delay that a handler names.
const maxNamed = time.Hour

func (g *Group) named(d time.Duration) time.Duration {
	return max(min(d, maxNamed), min(g.opts.Retry.Min, maxNamed))
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
func (g *Group) fail(r *run, f failure, now time.Time, fx *effects) {
	k, m := r.k, r.m
	if f.spend && !f.held {
		m.Attempts++
	}
	if m.FirstFailure.IsZero() {
		m.FirstFailure = now
	}
	delay := g.opts.Retry.Delay(max(0, m.Attempts-1))
	if f.delay > 0 {
		delay = g.named(f.delay)
	}
	m.unsaved, m.LastErr = true, f.err
	// A probe that named a time of its own would be asked again before it.
	stays := f.held && g.cfg.Forward == ForwardStash && (f.delay == 0 || f.paused)
	switch {
	case g.spent(m):
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExhausted, Err: f.err, Stack: f.stack})
	case g.expired(m, now):
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExpired, Err: f.err, Stack: f.stack})
	case (stays || g.opts.Ordered) && !f.hung:
		if f.held {
			m.probes++
		}
		switch {
		case !f.held || f.delay > 0:
			m.Due = now.Add(delay)
		case !g.opts.Ordered:
			// Its own delay for when its key flows again. As a probe it may be asked before.
			m.Due = now.Add(g.opts.Retry.Delay(m.Attempts + m.probes - 1))
		}
		g.keep(k, m, now, fx)
		if f.spend && !f.held {
			g.remember(m, fx)
		}
	default:
		due := now.Add(delay)
		fx.settle(m, Outcome{Action: RetryLater, Due: due, Err: f.err, Stack: f.stack})
		g.away(m, due)
	}
}

// comeBack takes in a message whose run was cancelled: no attempt is spent.
func (g *Group) comeBack(k *key, m *Message, now time.Time, fx *effects) {
	if k.state == Waiting && g.cfg.Forward != ForwardStash {
		g.giveBack(m, k.until, now, "its child was stopped", k.lastErr, fx)
		return
	}
	g.keep(k, m, now, fx)
}

// keep puts a message that was started back to those that wait.
func (g *Group) keep(k *key, m *Message, now time.Time, fx *effects) {
	switch {
	case g.closing, g.paused, g.keys[k.name] != k: // k ended meanwhile, and its messages made a new supervisor
		g.deliver(m, now, fx)
	case k.state == Suspended:
		g.refuse(k, m, now, fx)
	default:
		g.putStash(k, m, now, fx)
		g.bound(now, fx)
	}
}

// countStuck stops the route when too many goroutines do not come back.
func (g *Group) countStuck(now time.Time, fx *effects) {
	g.counts.Hangs++
	if g.stuck > g.cfg.MaxStuck {
		g.failRoute(fmt.Errorf("%d handlers ignore their timeout (max_stuck is %d)", g.stuck, g.cfg.MaxStuck), now, fx)
	}
}

// hang gives up a run whose handler ignores the end of its context. Its goroutine stays behind.
func (g *Group) hang(r *run, now time.Time, fx *effects) {
	late := r.child != r.k.child
	g.endRun(r, now)
	r.hung = true
	g.stuck++
	g.leave()
	if r.probe && r.k.probe == r {
		r.k.probe = nil
	}
	err := fmt.Errorf("%w of %v", ErrHandlerHung, g.opts.Timeout)
	g.judgeRetry(r, true)
	if r.cancelled {
		// The bytes may still be in use there: the message must come again with its own.
		g.giveBack(r.m, now.Add(minGiveBack), now, "its child was stopped", err, fx)
	} else {
		g.fail(r, failure{err: err, spend: true, hung: true}, now, fx)
	}
	if !late {
		g.stopped(r.k, err, fmt.Sprintf("%s was abandoned: %v", r.k.childName(), err), true, now, fx)
	}
	if !late || r.routeProbe > 0 {
		g.routeFailed(r, err, now, fx)
	}
	g.countStuck(now, fx)
	g.endRound(r, true, now, fx)
	g.attend(r.k, now, fx)
	g.calm()
}
