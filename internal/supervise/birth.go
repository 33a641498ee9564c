package supervise

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// birth is the making of a child, which has a slot and the route's timeout like an attempt.
type birth struct {
	k        *key
	of       *handler
	epoch    int32 // of the route, when it began
	deadline time.Time
	timeout  time.Duration
	ctx      context.Context
	cancel   context.CancelFunc
	overdue  bool
	late     time.Duration // how long after its deadline that was noticed
	hung     bool          // given up; only its goroutine remains
	former   bool          // nobody waits for the child: its handler was changed
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
			err = newPanicError(v)
		}
	}()
	value, err = b.of.begin(b.ctx, b.k.name)
}

func (g *Group) begun(b *birth, value any, err error) {
	b.cancel()
	t := g.lock()
	if b.hung {
		t.slots.stuck--
		timeout := t.opts.Timeout
		t.unlock()
		if err == nil {
			g.stopValue(b.of, value, timeout)
		}
		return
	}
	k := b.k
	t.slots.removeBirth(b)
	c := &child{value: value, of: b.of, values: t.opts.Values, number: k.children, started: t.now, former: b.former}
	switch {
	case b.former && err != nil:
	case b.former:
		t.nursery.endChild(t, c)
	case err != nil:
		t.nursery.kids--
		t.nursery.adopt(t)
		k.birthFailed(t, err)
	case t.closing, k.is(Suspended):
		t.nursery.endChild(t, c)
	default:
		k.child = c
		k.touch(t)
		k.state.born(t, k)
	}
	k.attend(t)
	t.calm()
	t.startAll()
	t.unlock()
	g.leave()
}

// birthFailed is a stop of a child that never was.
func (k *key) birthFailed(t *turn, err error) {
	if !k.is(Suspended) && !t.closing {
		k.stopped(t, crashed, err, fmt.Sprintf("%s did not start: %v", k.childName(), err))
	}
}

func (s *slots) removeBirth(b *birth) {
	i := slices.Index(s.births, b)
	s.births = slices.Delete(s.births, i, i+1)
	if b.k.birth == b {
		b.k.birth = nil
	}
	s.ended(b.epoch)
}

// endBirth gives up a factory that does not return. Its goroutine stays behind, and stops the child if there will be one.
func (n *nursery) endBirth(t *turn, b *birth) {
	t.slots.removeBirth(b)
	b.hung = true
	t.slots.stuck++
	if !b.former {
		n.kids--
		n.adopt(t)
	}
	t.group.leave()
}

// hangBirth is the end of a factory that ignores its timeout: a stop, like one that fails.
func (n *nursery) hangBirth(t *turn, b *birth) {
	n.endBirth(t, b)
	if !b.former {
		b.k.birthFailed(t, fmt.Errorf("%w of %v", ErrHandlerHung, b.timeout))
	}
	t.counts.Hangs++
	if !b.former {
		t.slots.boundStuck(t)
	}
	b.k.attend(t)
	t.calm()
}
