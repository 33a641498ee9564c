package supervisor

import (
	"context"
	"time"
)

// Drain begins the end: nothing starts any more, and what has not started is given back at once.
func (g *Group) Drain() {
	var fx effects
	now := g.lock()
	if !g.closing {
		g.closing = true
		g.idleNow = make(chan struct{})
		for _, k := range g.keys {
			for _, l := range []*list{&k.stash, &k.later, &k.due, &k.fresh} {
				for l.first != nil {
					m := l.first
					g.take(k, m)
					g.giveBack(m, time.Time{}, now, "shutting down", nil, &fx)
				}
			}
		}
		if g.busy() == 0 {
			g.quiet()
		}
	}
	g.unlock(&fx)
}

// quiet says that nothing runs any more.
func (g *Group) quiet() {
	select {
	case <-g.idleNow:
	default:
		close(g.idleNow)
	}
}

// closeGrace is how long handlers may take to return once they are cancelled at the end, and a quarter of it the children
// to stop. Both together leave time for the last settlements within a second.
const closeGrace = 640 * time.Millisecond

// Close drains the group, lets the handlers finish until ctx is done, then cancels them and gives up those that do not
// return soon. Children are stopped. It returns how many messages were interrupted; they spend no attempt.
func (g *Group) Close(ctx context.Context) (interrupted int) {
	g.Drain()
	select {
	case <-g.idleNow:
	case <-ctx.Done():
		interrupted = g.interrupt()
		grace := time.NewTimer(closeGrace)
		defer grace.Stop()
		select {
		case <-g.idleNow:
		case <-grace.C:
			g.abandon()
		}
	}
	g.mu.Lock()
	g.ended = true
	g.timer.Stop()
	for _, k := range g.keys {
		g.retire(k)
	}
	g.mu.Unlock()
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

// interrupt cancels all that still runs, and returns how many messages that is.
func (g *Group) interrupt() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, l := range []*runList{&g.running, &g.overdue} {
		for r := l.first; r != nil; r = r.next {
			r.cancelled = true
			r.cancel(context.Canceled)
			n++
		}
	}
	for _, b := range g.births {
		b.cancel()
	}
	return n
}

// abandon lets go of the messages whose handlers do not return: somebody else gets them after AckWait.
func (g *Group) abandon() {
	var fx effects
	now := g.lock()
	for _, l := range []*runList{&g.running, &g.overdue} {
		for l.first != nil {
			r := l.first
			g.endRun(r, now)
			r.hung = true
			g.stuck++
			g.leave()
			fx.settle(r.m, Outcome{Action: LetGo, Why: "its handler did not return"})
		}
	}
	for len(g.births) > 0 {
		g.endBirth(g.births[0])
	}
	g.unlock(&fx)
}
