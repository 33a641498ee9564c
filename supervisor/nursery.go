package supervisor

import (
	"context"
	"time"
)

// nursery has the children of keys: one that all share, or one for each key, of which there are at most so many.
type nursery struct {
	shared    *child // nil: each key has its own
	most      int
	kids      int       // children of keys, with those that are being made and those that have to finish their last runs
	births    []*birth  // children that are being made, each on a slot; in the order they began
	idle      list[key] // keys with a child of their own that does nothing, least recently used first
	childless queue     // keys that wait for another key's child to end
}

// child is one incarnation of the handler for a key.
type child struct {
	value   any
	values  values
	number  int
	started time.Time
	shared  bool // the value belongs to all keys
	runs    int  // not counted when shared
	over    bool // no new runs; it is stopped when runs is 0
}

func newNursery(opts Options, now time.Time) nursery {
	n := nursery{most: opts.Config.MaxChildren, childless: queue{mark: markChildless}}
	if opts.New == nil {
		n.shared = &child{value: opts.Shared, values: opts.Values, number: 1, shared: true, started: now}
	}
	return n
}

// room tells whether a child can be made now, if need be in the place of an idle one.
func (n *nursery) room() bool { return n.kids < n.most || n.idle.n > 0 }

// holdChild counts a run of a child of k's own, which is then not idle.
func (t *turn) holdChild(c *child, k *key) {
	if c.shared {
		return
	}
	c.runs++
	t.nursery.idle.remove(&k.inIdle)
}

// releaseChild ends what holdChild began.
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
		t.nursery.idle.push(&k.inIdle, k)
		t.adopt()
	}
}

// mayRetire lets another key have the place of k's child, which has nothing to do now. A fresh one has until its first
// turn, or keys that are more than there may be children would end each other's before any got a message.
func (t *turn) mayRetire(k *key) {
	c := k.child
	if c == nil || c.shared || c.runs > 0 || t.nursery.idle.has(&k.inIdle) || k.is(Probing) && t.now.Before(k.state.until()) {
		return
	}
	t.nursery.idle.push(&k.inIdle, k)
	t.adopt()
}

// retireUnused lets others have the places of children that were made for a question of their key, and have nothing to do. While the
// route flows each key has its turn and finds that out by itself.
func (t *turn) retireUnused() {
	for _, k := range t.keys {
		if k.messages() == 0 {
			t.mayRetire(k)
		}
	}
}

// retire ends k's child once its runs have returned; a shared value lives on.
func (t *turn) retire(k *key) {
	c := k.child
	k.child, k.stale = nil, k.runs
	if c == nil || c.shared {
		return
	}
	t.nursery.idle.remove(&k.inIdle)
	c.over = true
	if c.runs == 0 {
		t.endChild(c)
	}
}

func (t *turn) endChild(c *child) {
	t.nursery.kids--
	t.adopt()
	if t.opts.Stop != nil {
		t.group.goes.Add(1)
		go t.group.stop(c.value)
	}
}

// stop ends the value of a child on a goroutine of its own.
func (g *Group) stop(value any) {
	defer g.leave()
	g.stopValue(value)
}

func (g *Group) stopValue(value any) {
	if g.opts.Stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(g.background(), g.opts.Timeout)
	defer cancel()
	defer func() { _ = recover() }() // it is over anyway
	g.opts.Stop(ctx, value)
}

// adopt lets the next key that waits for a child try again: one ended or is idle.
func (t *turn) adopt() {
	for t.nursery.childless.len() > 0 {
		k := t.nursery.childless.pop()
		if t.keys[k.name] == k && k.child == nil && k.messages() > 0 {
			t.makeReady(k)
			return
		}
	}
}

// make begins to make a child for k; it takes a slot meanwhile. A shared child is there at once. When there are as many
// children as there may be, the one idle longest makes room, or k waits until there is such a one.
func (t *turn) make(k *key) {
	n := &t.nursery
	if k.birth != nil {
		return
	}
	if !n.room() && !t.route.flows() {
		t.retireUnused()
	}
	if !n.room() || t.held && !t.freed {
		n.childless.push(k)
		return
	}
	if n.kids >= n.most {
		t.retire(n.idle.first())
	}
	k.children++
	t.counts.Children++
	if n.shared != nil {
		k.child = &child{value: n.shared.value, values: n.shared.values, number: k.children, shared: true, started: t.now}
		return
	}
	n.kids++
	b := &birth{k: k, epoch: t.route.epoch, deadline: t.now.Add(t.opts.Timeout), timeout: t.opts.Timeout}
	b.ctx, b.cancel = context.WithDeadline(t.group.background(), b.deadline)
	k.birth = b
	n.births = append(n.births, b)
	t.alarm.arm(b.next())
	t.group.goes.Add(1)
	go t.group.begin(b)
}
