package supervisor

import (
	"context"
	"time"
)

// child is one incarnation of the handler for a key.
type child struct {
	value   any
	number  int
	started time.Time
	shared  bool // the value belongs to all keys
	runs    int  // not counted when shared
	over    bool // no new runs; it is stopped when runs is 0
}

// hold counts a run of a child of its own, which is then not idle.
func (t *turn) holdChild(c *child, k *key) {
	if c.shared {
		return
	}
	c.runs++
	t.alive.remove(k)
}

// release ends what hold began.
func (t *turn) releaseChild(c *child, k *key) {
	if c.shared {
		return
	}
	c.runs--
	switch {
	case c.runs > 0:
	case c.over:
		t.endChild(c)
	case k.child == c:
		t.alive.push(k)
		t.adopt()
	}
}

// mayRetire lets another key have the place of k's child, which has nothing to do now. A fresh one has until its first
// turn, or keys that are more than there may be children would end each other's before any got a message.
func (t *turn) mayRetire(k *key) {
	c := k.child
	if c == nil || c.shared || c.runs > 0 || t.alive.has(k) || k.state == Probing && t.now.Before(k.until) {
		return
	}
	t.alive.push(k)
	t.adopt()
}

// retire ends k's child once its runs have returned; a shared value lives on.
func (t *turn) retire(k *key) {
	c := k.child
	k.child, k.stale = nil, k.runs
	if c == nil || c.shared {
		return
	}
	t.alive.remove(k)
	c.over = true
	if c.runs == 0 {
		t.endChild(c)
	}
}

func (t *turn) endChild(c *child) {
	t.kids--
	t.adopt()
	if t.opts.Stop == nil {
		return
	}
	t.group.goes.Add(1)
	go t.group.stop(c.value)
}

// stop ends the value of a child, on a goroutine of its own.
func (g *Group) stop(value any) {
	defer g.leave()
	g.stopValue(value)
}

func (g *Group) stopValue(value any) {
	if g.opts.Stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timeout)
	defer cancel()
	defer func() { _ = recover() }() // it is over anyway
	g.opts.Stop(ctx, value)
}

// adopt lets the next key that waits for a child try again: one ended or is idle.
func (t *turn) adopt() {
	for t.orphans.len() > 0 {
		k := t.orphans.pop()
		k.orphan = false
		if t.keys[k.name] == k && k.child == nil && k.messages() > 0 {
			t.makeReady(k)
			return
		}
	}
}

// roomForChild tells whether a child can be made now, if need be in the place of an idle one.
func (t *turn) roomForChild() bool {
	return t.kids < t.cfg.MaxChildren || t.alive.first != nil
}

// make begins to make a child for k; it takes a slot meanwhile. A shared child is there at once. When there are as many
// children as there may be, the one idle longest makes room, or k waits until there is such a one.
func (t *turn) make(k *key) {
	if k.birth != nil {
		return
	}
	if !t.roomForChild() || t.held && !t.freed {
		if !k.orphan {
			k.orphan = true
			t.orphans.push(k)
		}
		return
	}
	if t.kids >= t.cfg.MaxChildren {
		t.retire(t.alive.first)
	}
	k.children++
	t.counts.Children++
	if t.shared != nil {
		k.child = &child{value: t.shared.value, number: k.children, shared: true, started: time.Now()}
		return
	}
	t.kids++
	b := &birth{k: k, epoch: t.route.epoch, deadline: time.Now().Add(t.opts.Timeout), timeout: t.opts.Timeout}
	b.ctx, b.cancel = context.WithDeadline(context.Background(), b.deadline)
	k.birth = b
	t.births = append(t.births, b)
	t.arm(b.next())
	t.group.goes.Add(1)
	go t.group.begin(b)
}
