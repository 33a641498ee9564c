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
	b.cancel()
	t := g.lock()
	if b.hung {
		t.stuck--
		t.unlock()
		if err == nil {
			g.stopValue(value)
		}
		return
	}
	k := b.k
	t.removeBirth(b)
	c := &child{value: value, number: k.children, started: t.now}
	switch {
	case err != nil:
		t.kids--
		t.adopt()
		if k.state != Suspended && !t.closing {
			t.stopped(k, err, fmt.Sprintf("%s did not start: %v", k.childName(), err), true)
		}
	case t.closing, k.state == Suspended:
		t.endChild(c)
	default:
		k.child = c
		t.touch(k)
		if k.state == Probing {
			k.until = t.now.Add(*t.cfg.DrainGrace)
		}
	}
	t.attend(k)
	t.calm()
	t.startAll()
	t.unlock()
	g.leave()
}

func (t *turn) removeBirth(b *birth) {
	i := slices.Index(t.births, b)
	t.births = slices.Delete(t.births, i, i+1)
	b.k.birth = nil
	t.route.ended(b.epoch)
}

// endBirth gives up a factory that does not return. Its goroutine stays behind, and stops the child if there will be one.
func (t *turn) endBirth(b *birth) {
	t.removeBirth(b)
	b.hung = true
	t.stuck++
	t.kids--
	t.adopt()
	t.group.leave()
}

// hangBirth is the end of a factory that ignores its timeout: a stop, like one that fails.
func (t *turn) hangBirth(b *birth) {
	t.endBirth(b)
	k := b.k
	if k.state != Suspended && !t.closing {
		err := fmt.Errorf("%w of %v", ErrHandlerHung, t.opts.Timeout)
		t.stopped(k, err, fmt.Sprintf("%s did not start: %v", k.childName(), err), true)
	}
	t.countStuck()
	t.attend(k)
	t.calm()
}
