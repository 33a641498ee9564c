package supervise

import (
	"context"
	"time"
)

// Drain begins the end: nothing starts any more, and what has not started is given back at once.
func (g *Group) Drain() {
	t := g.lock()
	if !t.closing {
		t.closing = true
		for _, k := range t.keys {
			k.emptyAll(t, t.shutOut)
		}
		if t.atWork() == 0 {
			t.tellQuiet()
		}
		if f := t.fallback.group; f != nil {
			t.call(f.Drain)
		}
		t.limits.leave()
	}
	t.unlock()
}

// shutOut gives a message back at once.
func (t *turn) shutOut(_ *key, m *Message) { t.giveBack(m, time.Time{}, "shutting down", nil) }

// tellQuiet says that nothing runs any more.
func (t *turn) tellQuiet() {
	select {
	case <-t.group.quiet:
	default:
		close(t.group.quiet)
	}
}

// closeGrace is how long handlers may take to return once they are cancelled at the end, and a quarter of it the children
// to stop. Both together leave time for the last settlements within a second.
const closeGrace = 640 * time.Millisecond

// Close drains the group, lets the handlers finish until ctx is done, then cancels them and gives up those that do not
// return soon. Children are stopped. It returns how many messages were interrupted; they spend no attempt.
func (g *Group) Close(ctx context.Context) (interrupted int) {
	g.Drain()
	returned := g.closeFallback(ctx)
	select {
	case <-g.quiet:
	case <-ctx.Done():
		interrupted = g.interrupt()
		grace := time.NewTimer(closeGrace)
		defer grace.Stop()
		select {
		case <-g.quiet:
		case <-grace.C:
			g.letGo()
		}
	}
	interrupted += <-returned
	t := g.lock()
	t.alarm.stop()
	for _, k := range t.keys {
		t.nursery.retire(t, k)
	}
	t.unlock()
	stopped := make(chan struct{})
	go func() {
		g.goes.Wait()
		close(stopped)
	}()
	limit := time.NewTimer(closeGrace / 4)
	defer limit.Stop()
	select {
	case <-stopped:
	case <-limit.C:
	}
	return interrupted
}

// closeFallback closes the fallback beside the main handler. The channel tells, once it has nothing any more, how many of its
// messages were interrupted.
func (g *Group) closeFallback(ctx context.Context) <-chan int {
	returned := make(chan int, 1)
	t := g.lock()
	inner := t.fallback.group
	t.unlock()
	if inner == nil {
		returned <- 0
		return returned
	}
	go func() { returned <- inner.Close(ctx) }()
	return returned
}

// interrupt cancels all that still runs, and returns how many messages that is.
func (g *Group) interrupt() int {
	t := g.lock()
	defer t.unlock()
	n := 0
	for _, runs := range []*list[run]{&t.slots.running, &t.slots.overdue} {
		for r := range runs.all() {
			r.cancelled = true
			r.cancel(cancelled)
			n++
		}
	}
	for _, b := range t.slots.births {
		b.cancel()
	}
	return n
}

// letGo gives up the messages whose handlers do not return: somebody else gets them after AckWait.
func (g *Group) letGo() {
	t := g.lock()
	for _, runs := range []*list[run]{&t.slots.running, &t.slots.overdue} {
		for r := range runs.all() {
			r.abandon(t)
			t.settle(r.m, Outcome{Action: LetGo, Why: "its handler did not return"})
		}
	}
	for len(t.slots.births) > 0 {
		t.nursery.endBirth(t, t.slots.births[0])
	}
	t.unlock()
}
