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

// wakeAt sees to it that k gets attention at t or before.
func (g *Group) wakeAt(k *key, t time.Time) {
	switch {
	case k.wakeIndex < 0:
		k.wake = t
		heap.Push(&g.wakes, k)
	case t.Before(k.wake):
		k.wake = t
		heap.Fix(&g.wakes, k.wakeIndex)
	default:
		return
	}
	g.arm(t)
}

func (g *Group) unwake(k *key) {
	if k.wakeIndex >= 0 {
		heap.Remove(&g.wakes, k.wakeIndex)
	}
}

// arm makes the timer fire at t or before.
func (g *Group) arm(t time.Time) {
	if !g.ended && (g.armed.IsZero() || t.Before(g.armed)) {
		g.armed = t
		g.timer.Reset(time.Until(t))
	}
}

// lock returns the time under the lock. Read before it, the time might be earlier than that of the one who had the lock
// meanwhile and queued a key because its grace was over: the key would be taken from the queue, and not start.
func (g *Group) lock() (now time.Time) {
	g.mu.Lock()
	return time.Now()
}

// tick does all that waits for time, and arms the timer for what is next.
func (g *Group) tick() {
	var fx effects
	now := g.lock()
	if g.ended {
		g.mu.Unlock()
		return
	}
	g.goes.Add(1) // Close waits for what is settled here
	defer g.leave()
	g.armed = time.Time{}
	g.endOverdue(now, &fx)
	g.attendRoute(now, &fx)
	for len(g.wakes) > 0 && !g.wakes[0].wake.After(now) {
		k := heap.Pop(&g.wakes).(*key)
		g.attend(k, now, &fx)
	}
	g.startAll(now)
	if len(g.wakes) > 0 {
		g.arm(g.wakes[0].wake)
	}
	if g.running.first != nil {
		g.arm(g.running.first.deadline)
	}
	if g.overdue.first != nil {
		g.arm(g.overdue.first.hangs())
	}
	for _, b := range g.births {
		g.arm(b.next())
	}
	if g.route.state == Waiting {
		g.arm(g.route.until)
	}
	g.tellMore(&fx)
	g.unlock(&fx)
}

// hangGrace is how long a handler may take to return after its context ended. It begins when that was noticed: a process that
// was stopped for longer (SIGSTOP, a virtual machine that moves) would take all its handlers for hung.
const hangGrace = time.Second

// endOverdue cancels the runs that are past their deadline and gives up those that did not care, and the factories.
func (g *Group) endOverdue(now time.Time, fx *effects) {
	for r := g.running.first; r != nil && !now.Before(r.deadline); r = g.running.first {
		g.running.remove(r)
		g.overdue.push(r)
		r.overdue, r.late = true, now.Sub(r.deadline)
		r.cancel(context.DeadlineExceeded)
	}
	for r := g.overdue.first; r != nil && !now.Before(r.hangs()); r = g.overdue.first {
		g.hang(r, now, fx)
	}
	for _, b := range g.births {
		if !b.overdue && !now.Before(b.deadline) {
			b.overdue, b.late = true, now.Sub(b.deadline)
		}
	}
	for len(g.births) > 0 && g.births[0].overdue && !now.Before(g.births[0].next()) {
		g.hangBirth(g.births[0], now, fx)
	}
}

// attend does what is due for k: its wait, its grace, messages whose own delay is over, its end.
func (g *Group) attend(k *key, now time.Time, fx *effects) {
	if g.keys[k.name] != k {
		return
	}
	if k.state == Waiting {
		if now.Before(k.until) {
			g.wakeAt(k, k.until)
		} else {
			g.probe(k, "its wait is over", now, fx)
		}
	}
	for m := k.later.first; m != nil && !m.Due.After(now); m = k.later.first {
		k.later.remove(m)
		k.stash.push(m) // still counted
	}
	if k.later.first != nil {
		g.wakeAt(k, k.later.first.Due)
	}
	if k.state == Probing && now.Before(k.until) {
		g.wakeAt(k, k.until)
	}
	if k.stash.first != nil && k.stash.first.Due.After(now) {
		g.wakeAt(k, k.stash.first.Due) // ordered: the others wait behind it
	}
	if k.stash.first != nil && g.gate.holds(k.stash.first, now) {
		g.wakeAt(k, g.gate.until)
	}
	if _, until, any := k.outside.next(now); any {
		g.wakeAt(k, until)
		g.callBack(k, now, fx)
	}
	g.makeReady(k)
	g.settleKey(k, now)
}
