package supervisor

import (
	"context"
	"fmt"
	"time"
)

// stopped is the end of k's child by a crash, or by its own wish: its other runs are cancelled, and what comes next is
// up to the trigger.
func (t *turn) stopped(k *key, err error, why string, crash bool) {
	if err != nil {
		k.lastErr = err
	}
	t.cancelRuns(k)
	k.failures, k.several, k.tripped = 0, false, false
	if crash && t.cfg.Trigger == TriggerStop {
		t.giveUp(k, why)
		return
	}
	t.again(k, why)
}

// stable tells whether a child that lived this long resets the restart count.
func (t *turn) stable(lived time.Duration) bool {
	switch t.cfg.Reset {
	case ResetSuccess, ResetNever:
		return false
	case ResetMinStable:
		return lived >= t.cfg.Restart.Min
	}
	d, err := time.ParseDuration(t.cfg.Reset)
	return err == nil && lived >= d
}

// cancelRuns ends the contexts of what k's child is still doing.
func (t *turn) cancelRuns(k *key) {
	if k.child == nil {
		return
	}
	for _, l := range []*runList{&t.running, &t.overdue} {
		for r := l.first; r != nil; r = r.next {
			if r.k == k && r.child == k.child {
				r.cancelled = true
				r.cancel(context.Canceled)
			}
		}
	}
}

// cleanStop is the end that a child asked for.
func (t *turn) cleanStop(k *key, err error) {
	why := fmt.Sprintf("%s stopped cleanly", k.childName())
	if err != nil {
		why += ": " + err.Error()
	}
	if t.cfg.Trigger != TriggerFailure {
		t.stopped(k, nil, why, false)
		return
	}
	t.cancelRuns(k)
	t.retire(k)
	t.move(k, Stopped, why, 0)
	// What is still there makes a new supervisor.
	var rest []*Message
	for _, l := range []*list{&k.stash, &k.due, &k.fresh, &k.later} {
		for l.first != nil {
			m := l.first
			t.take(k, m)
			rest = append(rest, m)
		}
	}
	t.forget(k)
	if len(k.outside.absent) > 0 {
		next := t.newKey(k.name)
		next.outside = k.outside
		t.attend(next)
	}
	for _, m := range rest {
		t.deliver(m)
	}
}

// again makes k wait for its next child, longer each time, or gives it up.
func (t *turn) again(k *key, why string) {
	if limit := t.cfg.MaxRestarts; limit > 0 {
		k.stops = append(k.stops, t.now)
		for len(k.stops) > 0 && t.now.Sub(k.stops[0]) > t.cfg.Window {
			k.stops = k.stops[1:]
		}
		if len(k.stops) > limit {
			t.giveUp(k, fmt.Sprintf("more than %d restarts within %v: %s", limit, t.cfg.Window, why))
			return
		}
	}
	if k.child != nil && t.stable(t.now.Sub(k.child.started)) {
		k.restarts = 0
	}
	k.failedAt = t.now
	delay := t.cfg.Restart.Delay(k.restarts)
	if k.restarts < 1<<30 {
		k.restarts++
	}
	t.wait(k, delay, why)
}

// wait lets nothing of k start for so long.
func (t *turn) wait(k *key, delay time.Duration, why string) {
	t.retire(k)
	k.until = t.now.Add(delay)
	k.probe, k.ramp = nil, 0
	t.move(k, Waiting, why, delay)
	if t.cfg.Forward == ForwardStash {
		t.stashWindow(k)
		t.bound()
	} else {
		for _, l := range []*list{&k.stash, &k.due, &k.fresh} {
			for l.first != nil {
				m := l.first
				t.take(k, m)
				t.turnAway(k, m)
			}
		}
	}
	t.wakeAt(k, k.until)
}

// probe lets k have a fresh child, which then gets one message. One of its own is made when it has a message and there
// is a slot.
func (t *turn) probe(k *key, why string) {
	k.until = t.now.Add(*t.cfg.DrainGrace)
	if t.shared != nil {
		t.make(k)
	}
	t.move(k, Probing, why, 0)
	t.wakeAt(k, k.until)
}

// giveUp ends the restarts of k, as on_give_up says.
func (t *turn) giveUp(k *key, why string) {
	t.retire(k)
	k.gaveUp = t.cfg.OnGiveUp == GiveUpDeadLetter
	t.suspend(k, "gave up: "+why)
	if t.cfg.OnGiveUp == GiveUpExit && t.opts.Escalate != nil {
		err := fmt.Errorf("key %q gave up: %s", k.name, why)
		escalate := t.opts.Escalate
		t.call(func() { escalate(err) })
	}
}

// suspend sends everything of k away until it is resumed.
func (t *turn) suspend(k *key, why string) {
	k.probe, k.ramp, k.stops = nil, 0, nil
	t.move(k, Suspended, why, 0)
	for _, l := range []*list{&k.stash, &k.later, &k.due, &k.fresh} {
		for l.first != nil {
			m := l.first
			t.take(k, m)
			t.refuse(k, m)
		}
	}
}
