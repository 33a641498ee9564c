package supervise

import (
	"container/heap"
	"time"
)

// alarm is the one timer of a group, and the keys that want attention, by when.
type alarm struct {
	timer *time.Timer
	armed time.Time // zero: it is not
	off   bool      // for good
	keys  alarmHeap
}

// arm makes the timer fire at that time or before.
func (a *alarm) arm(at time.Time) {
	if !a.off && (a.armed.IsZero() || at.Before(a.armed)) {
		a.armed = at
		a.timer.Reset(time.Until(at))
	}
}

// wake sees to it that k gets attention at that time or before.
func (a *alarm) wake(k *key, at time.Time) {
	switch {
	case k.wakeIndex < 0:
		k.wakeAt = at
		heap.Push(&a.keys, k)
	case at.Before(k.wakeAt):
		k.wakeAt = at
		heap.Fix(&a.keys, k.wakeIndex)
	default:
		return
	}
	a.arm(at)
}

// due takes out the next key that wants attention now; nil when there is none.
func (a *alarm) due(now time.Time) *key {
	if len(a.keys) == 0 || a.keys[0].wakeAt.After(now) {
		return nil
	}
	return heap.Pop(&a.keys).(*key)
}

// forget is for a key that wants no attention any more.
func (a *alarm) forget(k *key) {
	if k.wakeIndex >= 0 {
		heap.Remove(&a.keys, k.wakeIndex)
	}
}

// stop keeps the timer from ever firing again.
func (a *alarm) stop() {
	a.off = true
	a.timer.Stop()
}

// alarmHeap orders keys by when they want attention.
type alarmHeap []*key

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].wakeAt.Before(h[j].wakeAt) }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].wakeIndex, h[j].wakeIndex = i, j
}
func (h *alarmHeap) Push(x any) {
	k := x.(*key)
	k.wakeIndex = len(*h)
	*h = append(*h, k)
}
func (h *alarmHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.wakeIndex = -1
	return k
}

// tick is called by the timer. It does all that waits for time, and arms the timer for what is next.
func (g *Group) tick() {
	t := g.lock()
	if t.alarm.off {
		t.unlock()
		return
	}
	g.goes.Add(1) // Close waits for what is settled here
	defer g.leave()
	t.alarm.armed = time.Time{}
	t.slots.endOverdue(t)
	t.route.state.attend(t)
	for k := t.alarm.due(t.now); k != nil; k = t.alarm.due(t.now) {
		k.attend(t)
	}
	t.slots.pace.look(t.counts.Started)
	t.startAll()
	t.rearm()
	t.window.tellMore(t)
	t.unlock()
}

// rearm arms the timer for what is next.
func (t *turn) rearm() {
	if len(t.alarm.keys) > 0 {
		t.alarm.arm(t.alarm.keys[0].wakeAt)
	}
	if r := t.slots.running.first(); r != nil {
		t.alarm.arm(r.deadline)
	}
	if r := t.slots.overdue.first(); r != nil {
		t.alarm.arm(r.hangs())
	}
	for _, b := range t.slots.births {
		t.alarm.arm(b.next())
	}
	if t.route.is() == Waiting {
		t.alarm.arm(t.route.until())
	}
	if t.fallback.spare() > 0 {
		t.alarm.arm(t.fallback.kept)
	}
}

// attend does what is due for k: its wait, its grace, messages whose own delay is over, its end.
func (k *key) attend(t *turn) {
	if k.gone {
		return
	}
	k.state.attend(t, k)
	for m := k.later.first(); m != nil && !m.Due.After(t.now); m = k.later.first() {
		k.later.remove(&m.place)
		k.held.push(&m.place, m) // still counted
	}
	if m := k.later.first(); m != nil {
		t.alarm.wake(k, m.Due)
	}
	if m := k.held.first(); m != nil {
		if m.Due.After(t.now) {
			t.alarm.wake(k, m.Due) // ordered: the others wait behind it
		}
		if gate := &t.order.gate; gate.holds(m, t.now) && !gate.arrived {
			t.alarm.wake(k, t.order.gate.until)
		}
	}
	if !t.paused { // nothing can overtake them, and when the operator resumes they still come first
		if _, until, any := k.outside.next(t.now); any {
			t.alarm.wake(k, until)
			t.order.callBack(t, k)
		}
	}
	t.makeReady(k)
	t.fallback.offer(t, k)
	k.finish(t)
}
