package supervisor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// birth is the making of a child, which has a slot and the route's timeout like an attempt.
type birth struct {
	k        *key
	epoch    int // of the route, when it began
	deadline time.Time
	timeout  time.Duration
	ctx      context.Context
	cancel   context.CancelFunc
	overdue  bool
	late     time.Duration // how long after its deadline that was noticed
	hung     bool          // given up; only its goroutine remains
}

func (b *birth) began() time.Time { return b.deadline.Add(-b.timeout) }

// next is when b wants attention: at its deadline, and when it counts as hung.
func (b *birth) next() time.Time {
	if !b.overdue {
		return b.deadline
	}
	return b.deadline.Add(b.late + hangGrace)
}

// begin makes a child on its own goroutine.
func (g *Group) begin(b *birth) {
	var value any
	err := error(&PanicError{Goexit: true})
	defer func() { g.begun(b, value, err) }() // runs after Goexit too
	defer func() {
		if v := recover(); v != nil {
			err = newPanicError(v, false)
		}
	}()
	value, err = g.opts.New(b.ctx, b.k.name)
}

func (g *Group) begun(b *birth, value any, err error) {
	var fx effects
	b.cancel()
	now := g.lock()
	if b.hung {
		g.stuck--
		g.unlock(&fx)
		if err == nil {
			g.stopValue(value)
		}
		return
	}
	k := b.k
	g.removeBirth(b)
	c := &child{value: value, number: k.children, started: now}
	switch {
	case err != nil:
		g.kids--
		g.adopt()
		if k.state != Suspended && !g.closing {
			g.stopped(k, err, fmt.Sprintf("%s did not start: %v", k.childName(), err), true, now, &fx)
		}
	case g.closing, k.state == Suspended:
		g.endChild(c)
	default:
		k.child = c
		g.touch(k, now)
		if k.state == Probing {
			k.until = now.Add(*g.cfg.DrainGrace)
		}
	}
	g.attend(k, now, &fx)
	g.calm()
	g.startAll(now)
	g.unlock(&fx)
	g.leave()
}

func (g *Group) removeBirth(b *birth) {
	i := slices.Index(g.births, b)
	g.births = slices.Delete(g.births, i, i+1)
	b.k.birth = nil
	g.route.ended(b.epoch)
}

// endBirth gives up a factory that does not return. Its goroutine stays behind, and stops the child if there will be one.
func (g *Group) endBirth(b *birth) {
	g.removeBirth(b)
	b.hung = true
	g.stuck++
	g.kids--
	g.adopt()
	g.leave()
}

// hangBirth is the end of a factory that ignores its timeout: a stop, like one that fails.
func (g *Group) hangBirth(b *birth, now time.Time, fx *effects) {
	g.endBirth(b)
	k := b.k
	if k.state != Suspended && !g.closing {
		err := fmt.Errorf("%w of %v", ErrHandlerHung, g.opts.Timeout)
		g.stopped(k, err, fmt.Sprintf("%s did not start: %v", k.childName(), err), true, now, fx)
	}
	g.countStuck(now, fx)
	g.attend(k, now, fx)
	g.calm()
}
