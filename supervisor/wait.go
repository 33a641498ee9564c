package supervisor

import (
	"context"
	"fmt"
	"time"
)

// stopped is the end of k's child by a crash, or by its own wish: its other runs are cancelled, and what comes next is
// up to the trigger.
func (g *Group) stopped(k *key, err error, why string, crash bool, now time.Time, fx *effects) {
	if err != nil {
		k.lastErr = err
	}
	g.cancelRuns(k)
	k.failures, k.several, k.tripped = 0, false, false
	if crash && g.cfg.Trigger == TriggerStop {
		g.giveUp(k, why, now, fx)
		return
	}
	g.again(k, why, now, fx)
}

// stable tells whether a child that lived this long resets the restart count.
func (g *Group) stable(lived time.Duration) bool {
	switch g.cfg.Reset {
	case ResetSuccess, ResetNever:
		return false
	case ResetMinStable:
		return lived >= g.cfg.Restart.Min
	}
	d, err := time.ParseDuration(g.cfg.Reset)
	return err == nil && lived >= d
}

// cancelRuns ends the contexts of what k's child is still doing.
func (g *Group) cancelRuns(k *key) {
	if k.child == nil {
		return
	}
	for _, l := range []*runList{&g.running, &g.overdue} {
		for r := l.first; r != nil; r = r.next {
			if r.k == k && r.child == k.child {
				r.cancelled = true
				r.cancel(context.Canceled)
			}
		}
	}
}

// cleanStop is the end that a child asked for.
func (g *Group) cleanStop(k *key, err error, now time.Time, fx *effects) {
	why := fmt.Sprintf("%s stopped cleanly", k.childName())
	if err != nil {
		why += ": " + err.Error()
	}
	if g.cfg.Trigger != TriggerFailure {
		g.stopped(k, nil, why, false, now, fx)
		return
	}
	g.cancelRuns(k)
	g.retire(k)
	g.move(k, Stopped, why, 0, now, fx)
	// What is still there makes a new supervisor.
	var rest []*Message
	for _, l := range []*list{&k.stash, &k.due, &k.fresh, &k.later} {
		for l.first != nil {
			m := l.first
			g.take(k, m)
			rest = append(rest, m)
		}
	}
	g.forget(k)
	if len(k.outside.absent) > 0 {
		next := g.newKey(k.name)
		next.outside = k.outside
		g.attend(next, now, fx)
	}
	for _, m := range rest {
		g.deliver(m, now, fx)
	}
}

// again makes k wait for its next child, longer each time, or gives it up.
func (g *Group) again(k *key, why string, now time.Time, fx *effects) {
	if limit := g.cfg.MaxRestarts; limit > 0 {
		k.stops = append(k.stops, now)
		for len(k.stops) > 0 && now.Sub(k.stops[0]) > g.cfg.Window {
			k.stops = k.stops[1:]
		}
		if len(k.stops) > limit {
			g.giveUp(k, fmt.Sprintf("more than %d restarts within %v: %s", limit, g.cfg.Window, why), now, fx)
			return
		}
	}
	if k.child != nil && g.stable(now.Sub(k.child.started)) {
		k.restarts = 0
	}
	k.failedAt = now
	delay := g.cfg.Restart.Delay(k.restarts)
	if k.restarts < 1<<30 {
		k.restarts++
	}
	g.wait(k, delay, why, now, fx)
}

// wait lets nothing of k start for so long.
func (g *Group) wait(k *key, delay time.Duration, why string, now time.Time, fx *effects) {
	g.retire(k)
	k.until = now.Add(delay)
	k.probe, k.ramp = nil, 0
	g.move(k, Waiting, why, delay, now, fx)
	if g.cfg.Forward == ForwardStash {
		g.stashWindow(k, now, fx)
		g.bound(now, fx)
	} else {
		for _, l := range []*list{&k.stash, &k.due, &k.fresh} {
			for l.first != nil {
				m := l.first
				g.take(k, m)
				g.turnAway(k, m, now, fx)
			}
		}
	}
	g.wakeAt(k, k.until)
}

// probe lets k have a fresh child, which then gets one message. One of its own is made when it has a message and there
// is a slot.
func (g *Group) probe(k *key, why string, now time.Time, fx *effects) {
	k.until = now.Add(*g.cfg.DrainGrace)
	if g.shared != nil {
		g.make(k)
	}
	g.move(k, Probing, why, 0, now, fx)
	g.wakeAt(k, k.until)
}

// giveUp ends the restarts of k, as on_give_up says.
func (g *Group) giveUp(k *key, why string, now time.Time, fx *effects) {
	g.retire(k)
	k.gaveUp = g.cfg.OnGiveUp == GiveUpDeadLetter
	g.suspend(k, "gave up: "+why, now, fx)
	if g.cfg.OnGiveUp == GiveUpExit && g.opts.Escalate != nil {
		err := fmt.Errorf("key %q gave up: %s", k.name, why)
		fx.calls = append(fx.calls, func() { g.opts.Escalate(err) })
	}
}

// suspend sends everything of k away until it is resumed.
func (g *Group) suspend(k *key, why string, now time.Time, fx *effects) {
	k.probe, k.ramp, k.stops = nil, 0, nil
	g.move(k, Suspended, why, 0, now, fx)
	for _, l := range []*list{&k.stash, &k.later, &k.due, &k.fresh} {
		for l.first != nil {
			m := l.first
			g.take(k, m)
			g.refuse(k, m, now, fx)
		}
	}
}
