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
func (c *child) hold(g *Group, k *key) {
	if c.shared {
		return
	}
	c.runs++
	g.alive.remove(k)
}

// release ends what hold began.
func (c *child) release(g *Group, k *key) {
	if c.shared {
		return
	}
	c.runs--
	switch {
	case c.runs > 0:
	case c.over:
		g.endChild(c)
	case k.child == c:
		g.alive.push(k)
		g.adopt()
	}
}

// mayRetire lets another key have the place of k's child, which has nothing to do now. A fresh one has until its first
// turn, or keys that are more than there may be children would end each other's before any got a message.
func (g *Group) mayRetire(k *key, now time.Time) {
	c := k.child
	if c == nil || c.shared || c.runs > 0 || g.alive.has(k) || k.state == Probing && now.Before(k.until) {
		return
	}
	g.alive.push(k)
	g.adopt()
}

// retire ends k's child once its runs have returned; a shared value lives on.
func (g *Group) retire(k *key) {
	c := k.child
	k.child, k.stale = nil, k.runs
	if c == nil || c.shared {
		return
	}
	g.alive.remove(k)
	c.over = true
	if c.runs == 0 {
		g.endChild(c)
	}
}

func (g *Group) endChild(c *child) {
	g.kids--
	g.adopt()
	if g.opts.Stop == nil {
		return
	}
	g.goes.Add(1)
	go func() {
		defer g.leave()
		g.stopValue(c.value)
	}()
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
func (g *Group) adopt() {
	for g.orphans.len() > 0 {
		k := g.orphans.pop()
		k.orphan = false
		if g.keys[k.name] == k && k.child == nil && k.messages() > 0 {
			g.makeReady(k)
			return
		}
	}
}

// roomForChild tells whether a child can be made now, if need be in the place of an idle one.
func (g *Group) roomForChild() bool {
	return g.kids < g.cfg.MaxChildren || g.alive.first != nil
}

// make begins to make a child for k; it takes a slot meanwhile. A shared child is there at once. When there are as many
// children as there may be, the one idle longest makes room, or k waits until there is such a one.
func (g *Group) make(k *key) {
	if k.birth != nil {
		return
	}
	if !g.roomForChild() || g.held && !g.freed {
		if !k.orphan {
			k.orphan = true
			g.orphans.push(k)
		}
		return
	}
	if g.kids >= g.cfg.MaxChildren {
		g.retire(g.alive.first)
	}
	k.children++
	g.counts.Children++
	if g.shared != nil {
		k.child = &child{value: g.shared.value, number: k.children, shared: true, started: time.Now()}
		return
	}
	g.kids++
	b := &birth{k: k, epoch: g.route.epoch, deadline: time.Now().Add(g.opts.Timeout), timeout: g.opts.Timeout}
	b.ctx, b.cancel = context.WithDeadline(context.Background(), b.deadline)
	k.birth = b
	g.births = append(g.births, b)
	g.arm(b.next())
	g.goes.Add(1)
	go g.begin(b)
}
