package supervise

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// complete takes the end of a run, and returns what its goroutine is to run next. With nil the goroutine ends.
func (g *Group) complete(r *run, res *result) *run {
	t := g.lock()
	if r.hung {
		t.slots.stuck--
		t.unlock()
		return nil // it was counted out before
	}
	r.end(t)
	r.judge(t, res)
	r.cancel(cancelled) // whatever was derived from it
	r.k.attend(t)
	t.calm()
	next := t.next()
	t.startAll()
	t.window.tellMore(t)
	t.unlock()
	if next == nil {
		g.leave()
	}
	return next
}

// end gives the slot back.
func (r *run) end(t *turn) {
	k := r.k
	t.slots.end(r)
	t.route.endProbe(r)
	t.limits.givePlaces(k)
	t.window.meter.done++
	r.child.of.release(&t.effects)
	t.nursery.releaseChild(t, r.child, k)
	k.touch(t)
}

// judge decides what the end of a run means for its message, its key and its route. The run of an earlier child settles its
// own message and moves nothing, unless it is a probe of the route.
func (r *run) judge(t *turn, res *result) {
	k, m, v := r.k, r.m, res.verdict
	if v.Kind > Lost {
		v = Verdict{Kind: Retry, Err: fmt.Errorf("unknown verdict %v", v.Kind)} // loses nothing
	}
	if t.order.former(m) && (v.Kind == Retry || v.Kind == Snooze) {
		v = Verdict{Kind: Lost, Gone: true} // the new ones of its key would stand behind it
	}
	if res.crash != nil {
		v.Kind = Retry
	}
	if !r.cancelled && v.Kind != Lost && !t.nursery.former(r) {
		t.slots.judgeRetry(r, v.Kind)
	}
	told := something
	if r.cancelled || v.Kind == Snooze || v.Kind == Lost || t.nursery.former(r) {
		told = nothing
	} else {
		t.route.hear(r, v)
	}
	switch {
	case r.cancelled && v.Kind == Retry:
		t.comeBack(k, m)
	case res.crash != nil:
		r.panicked(t, res.crash)
	case v.Kind == Lost:
		t.settle(m, Outcome{Action: LetGo, Why: "its lease is lost"})
		if !v.Gone {
			t.order.away(t, m, t.now)
		}
	case v.FailRoute:
		t.comeBack(k, m)
		if !t.nursery.former(r) {
			t.route.stop(t, v.Err)
		}
	case v.Kind == Retry:
		if v.Err == nil {
			v.Err = r.Err()
		}
		r.failed(t, v)
	case v.Kind == Snooze:
		t.snooze(k, m, v)
	case v.Kind == Dead && t.route.distrusts():
		r.doubted(t, v.Err)
		r.endRound(t, told)
		return
	default:
		r.answered(t, v)
	}
	if !t.nursery.former(r) {
		t.route.flood.watch(t, r, v)
	}
	r.endRound(t, told)
}

// panicked is a panic, or a runtime.Goexit: the child stopped.
func (r *run) panicked(t *turn, err error) {
	t.counts.Panics++
	panicked, _ := err.(*PanicError)
	r.fail(t, failure{err: err, stack: panicked.Stack, spend: true})
	if !r.late {
		r.k.stopped(t, crashed, err, fmt.Sprintf("%s: %v", r.k.childName(), err))
	}
	if !r.late || r.round > 0 {
		t.route.failed(t, r, err)
	}
}

func (t *turn) snooze(k *key, m *Message, v Verdict) {
	if t.opts.Ordered {
		m.Due = t.now.Add(v.Delay)
		t.keep(k, m)
		return
	}
	t.giveBack(m, t.now.Add(max(v.Delay, minGiveBack)), "snoozed", v.Err)
	t.last().Snoozed = true
}

// answered is a success, or a verdict that is one for the key: the handler worked.
func (r *run) answered(t *turn, v Verdict) {
	k, m := r.k, r.m
	if k.held.n > 0 || len(k.outside.absent) > 0 {
		t.order.progress = t.now
	}
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
	if r.late {
		if r.round > 0 {
			t.route.answered(t, r, v.Kind)
		}
		return
	}
	k.endRow()
	if t.cfg.Reset == resetSuccess {
		k.restarts = 0
	}
	k.worked = v.Kind != Dead
	k.state.answered(t, k)
	t.route.answered(t, r, v.Kind)
	if v.StopChild {
		k.cleanStop(t, v.Err)
	}
}

// failed is an error that a handler returned.
func (r *run) failed(t *turn, v Verdict) {
	k := r.k
	f := failure{err: v.Err, delay: v.Delay, paused: v.Pause, spend: !v.NotStarted}
	// While an outage is believed in, a probe that fails spends nothing: its message was only asked whether it is over.
	f.held = r.round > 0 || r.probe && k.tripped
	r.fail(t, f)
	if v.Suspend && !t.route.doubt && !t.nursery.former(r) {
		t.route.lastErr = v.Err
		t.route.suspend(t, text(v.Err))
		t.route.inquiry.quiet = true
	}
	if r.round > 0 && t.route.stopped != nil {
		t.route.stoppedBy(v.Err)
	}
	if r.late {
		if r.round > 0 {
			t.route.failed(t, r, v.Err)
		}
		return
	}
	k.failed(r.m, v.Err, t.now, t.cfg.Window)
	pause := time.Duration(0)
	if v.Pause && v.Delay > 0 {
		pause = t.opts.named(v.Delay)
	}
	if pause > 0 && t.cfg.RetryAfter == scopeKey {
		k.tripped = true // the handler itself says that it is not the message
		k.waitNamed(t, pause, fmt.Sprintf("Retry-After: %v", v.Err))
	} else if r.round == 0 || !k.flows() { // what the whole route waits for is no trouble of the key's
		k.state.failed(t, k, v.Err)
	}
	if pause > 0 && t.cfg.RetryAfter == supervisor.ScopeRoute {
		t.route.pause(t, pause, v.Err)
		return
	}
	t.route.failed(t, r, v.Err)
}

// maxNamed clamps a delay that a handler names.
const maxNamed = time.Hour

// named is the delay that a handler names, within bounds.
func (o *Options) named(d time.Duration) time.Duration {
	return max(min(d, maxNamed), min(o.Retry.Min, maxNamed))
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
func (r *run) fail(t *turn, f failure) {
	k, m := r.k, r.m
	if f.spend && !f.held {
		m.Attempts++
	}
	if m.FirstFailure.IsZero() {
		m.FirstFailure = t.now
	}
	delay := t.opts.Retry.Delay(max(0, m.Attempts-1))
	if f.delay > 0 {
		delay = t.opts.named(f.delay)
	}
	m.unsaved, m.LastErr = true, f.err
	// A probe that named a time of its own would be asked again before it.
	stays := f.held && t.cfg.Forward == forwardStash && (f.delay == 0 || f.paused)
	switch {
	case m.spent(t.opts):
		t.fallback.dies(t, k, m, Outcome{Action: DeadLetter, Reason: ReasonExhausted, Err: f.err, Stack: f.stack})
	case m.expired(t.opts, t.now):
		t.fallback.dies(t, k, m, Outcome{Action: DeadLetter, Reason: ReasonExpired, Err: f.err, Stack: f.stack})
	case (stays || t.opts.Ordered) && !f.hung:
		if f.held {
			m.probes++
		}
		switch {
		case !f.held || f.delay > 0:
			m.Due = t.now.Add(delay)
		case r.round > 0 && !t.opts.Ordered:
			m.Due = t.now.Add(t.opts.Retry.Delay(max(0, m.Attempts-1))) // that the route waited says nothing of the message
		case !t.opts.Ordered:
			// Its own delay for when its key flows again. As a probe it may be asked before.
			m.Due = t.now.Add(t.opts.Retry.Delay(m.Attempts + m.probes - 1))
		}
		t.keep(k, m)
		if f.spend && !f.held {
			t.remember(m)
		}
	case t.fallback.lendsProbe(t, r, f):
		m.Due = t.now.Add(delay)
		t.keep(k, m)
		t.remember(m)
	default:
		m.Due = t.now.Add(delay) // it is not called back before
		t.settle(m, Outcome{Action: RetryLater, Due: m.Due, Err: f.err, Stack: f.stack})
		t.order.away(t, m, m.Due)
	}
}

// comeBack takes in a message whose run was cancelled: no attempt is spent.
func (t *turn) comeBack(k *key, m *Message) {
	if k.is(Waiting) && t.cfg.Forward != forwardStash {
		t.giveBack(m, k.state.until(), "its child was stopped", k.lastErr)
		return
	}
	t.keep(k, m)
}

// keep puts a message that was started back to those that wait.
func (t *turn) keep(k *key, m *Message) {
	switch {
	case t.closing, k.gone: // k ended meanwhile, and its messages made a new supervisor
		t.deliver(m)
	case t.paused:
		t.admit(k, m) // k is not forgotten by the one who is at work on it
	case k.is(Suspended):
		t.refuse(k, m)
	default:
		t.stash.hold(t, k, m)
		t.stash.bound(t)
	}
}
