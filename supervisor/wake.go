package supervisor

import (
	"container/heap"
	"context"
	"time"
)

// wakeHeap orders keys by when they want attention.
type wakeHeap []*key

func (h wakeHeap) Len() int           { return len(h) }
func (h wakeHeap) Less(i, j int) bool { return h[i].wake.Before(h[j].wake) }
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].wakeIndex, h[j].wakeIndex = i, j
}
func (h *wakeHeap) Push(x any) {
	k := x.(*key)
	k.wakeIndex = len(*h)
	*h = append(*h, k)
}
func (h *wakeHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.wakeIndex = -1
	return k
}

// wakeAt sees to it that k gets attention at that time or before.
func (t *turn) wakeAt(k *key, at time.Time) {
	switch {
	case k.wakeIndex < 0:
		k.wake = at
		heap.Push(&t.wakes, k)
	case at.Before(k.wake):
		k.wake = at
		heap.Fix(&t.wakes, k.wakeIndex)
	default:
		return
	}
	t.arm(at)
}

func (t *turn) unwake(k *key) {
	if k.wakeIndex >= 0 {
		heap.Remove(&t.wakes, k.wakeIndex)
	}
}

// arm makes the timer fire at that time or before.
func (t *turn) arm(at time.Time) {
	if !t.ended && (t.armed.IsZero() || at.Before(t.armed)) {
		t.armed = at
		t.timer.Reset(time.Until(at))
	}
}

// tick does all that waits for time, and arms the timer for what is next.
func (g *Group) tick() {
	t := g.lock()
	if t.ended {
		t.unlock()
		return
	}
	g.goes.Add(1) // Close waits for what is settled here
	defer g.leave()
	t.armed = time.Time{}
	t.endOverdue()
	t.attendRoute()
	for len(t.wakes) > 0 && !t.wakes[0].wake.After(t.now) {
		k := heap.Pop(&t.wakes).(*key)
		t.attend(k)
	}
	t.startAll()
	if len(t.wakes) > 0 {
		t.arm(t.wakes[0].wake)
	}
	if t.running.first != nil {
		t.arm(t.running.first.deadline)
	}
	if t.overdue.first != nil {
		t.arm(t.overdue.first.hangs())
	}
	for _, b := range t.births {
		t.arm(b.next())
	}
	if t.route.state == Waiting {
		t.arm(t.route.until)
	}
	t.tellMore()
	t.unlock()
}

// hangGrace is how long a handler may take to return after its context ended. It begins when that was noticed: a process that
// was stopped for longer (SIGSTOP, a virtual machine that moves) would take all its handlers for hung.
const hangGrace = time.Second

// endOverdue cancels the runs that are past their deadline and gives up those that did not care, and the factories.
func (t *turn) endOverdue() {
	for r := t.running.first; r != nil && !t.now.Before(r.deadline); r = t.running.first {
		t.running.remove(r)
		t.overdue.push(r)
		r.overdue, r.late = true, t.now.Sub(r.deadline)
		r.cancel(context.DeadlineExceeded)
	}
	for r := t.overdue.first; r != nil && !t.now.Before(r.hangs()); r = t.overdue.first {
		t.hang(r)
	}
	for _, b := range t.births {
		if !b.overdue && !t.now.Before(b.deadline) {
			b.overdue, b.late = true, t.now.Sub(b.deadline)
		}
	}
	for len(t.births) > 0 && t.births[0].overdue && !t.now.Before(t.births[0].next()) {
		t.hangBirth(t.births[0])
	}
}

// attend does what is due for k: its wait, its grace, messages whose own delay is over, its end.
func (t *turn) attend(k *key) {
	if t.keys[k.name] != k {
		return
	}
	if k.state == Waiting {
		if t.now.Before(k.until) {
			t.wakeAt(k, k.until)
		} else {
			t.probe(k, "its wait is over")
		}
	}
	for m := k.later.first; m != nil && !m.Due.After(t.now); m = k.later.first {
		k.later.remove(m)
		k.stash.push(m) // still counted
	}
	if k.later.first != nil {
		t.wakeAt(k, k.later.first.Due)
	}
	if k.state == Probing && t.now.Before(k.until) {
		t.wakeAt(k, k.until)
	}
	if k.stash.first != nil && k.stash.first.Due.After(t.now) {
		t.wakeAt(k, k.stash.first.Due) // ordered: the others wait behind it
	}
	if k.stash.first != nil && t.gate.holds(k.stash.first, t.now) {
		t.wakeAt(k, t.gate.until)
	}
	if _, until, any := k.outside.next(t.now); any {
		t.wakeAt(k, until)
		t.callBack(k)
	}
	t.makeReady(k)
	t.settleKey(k)
}
