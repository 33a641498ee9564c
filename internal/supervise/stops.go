package supervise

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// ending is how a child ended.
type ending uint8

const (
	crashed ending = iota
	cleanly        // by its own wish
)

// stopped is the end of k's child: its other runs are cancelled, and what comes next is up to the trigger.
func (k *key) stopped(t *turn, how ending, err error, why string) {
	if err != nil {
		k.lastErr = err
	}
	t.slots.cancelRuns(k)
	k.endRow()
	k.tripped = false
	if how == crashed && t.cfg.Trigger == supervisor.TriggerStop {
		k.giveUp(t, why)
		return
	}
	k.again(t, why)
}

// stable tells whether a child that lived this long resets the restart count.
func stable(c *supervisor.Config, lived time.Duration) bool {
	switch c.Reset {
	case resetSuccess, supervisor.ResetNever:
		return false
	case supervisor.ResetMinStable:
		return lived >= c.Restart.Min
	}
	d, err := time.ParseDuration(string(c.Reset))
	return err == nil && lived >= d
}

// cancelRuns ends the contexts of what k's child is still doing.
func (s *slots) cancelRuns(k *key) {
	if k.child == nil {
		return
	}
	for _, runs := range []*list[run]{&s.running, &s.overdue} {
		for r := range runs.all() {
			if r.k == k && r.child == k.child {
				r.cancelled = true
				r.cancel(cancelled)
			}
		}
	}
}

// cleanStop is the end that a child asked for.
func (k *key) cleanStop(t *turn, err error) {
	why := fmt.Sprintf("%s stopped cleanly", k.childName())
	if err != nil {
		why += ": " + err.Error()
	}
	if t.cfg.Trigger != supervisor.TriggerFailure {
		k.stopped(t, cleanly, nil, why)
		return
	}
	t.slots.cancelRuns(k)
	t.nursery.retire(t, k)
	k.move(&t.moment, stopped{}, why, 0)
	// Messages that are still in the key begin a new supervisor.
	var rest []*Message
	for _, line := range []*list[Message]{&k.held, &k.returned, &k.fresh, &k.later} {
		k.empty(t, line, func(_ *key, m *Message) { rest = append(rest, m) })
	}
	k.forget(t)
	if len(k.outside.absent) > 0 {
		next := t.newKey(k.name)
		next.outside = k.outside
		next.attend(t)
	}
	for _, m := range rest {
		t.deliver(m)
	}
}

// again makes k wait for its next child, longer each time, or gives it up.
func (k *key) again(t *turn, why string) {
	if limit := t.cfg.MaxRestarts; limit > 0 {
		k.stops = append(k.stops, t.now)
		for len(k.stops) > 0 && t.now.Sub(k.stops[0]) > t.cfg.Window {
			k.stops = k.stops[1:]
		}
		if len(k.stops) > limit {
			k.giveUp(t, fmt.Sprintf("more than %d restarts within %v: %s", limit, t.cfg.Window, why))
			return
		}
	}
	if k.child != nil && stable(t.cfg, t.now.Sub(k.child.started)) {
		k.restarts = 0
	}
	k.failedAt = t.now
	delay := t.cfg.Restart.Delay(k.restarts)
	if k.restarts < 1<<30 {
		k.restarts++
	}
	k.wait(t, delay, why)
}
