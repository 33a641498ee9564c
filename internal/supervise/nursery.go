package supervise

import (
	"context"
	"time"
)

// nursery has the children of keys: one that all share, or one for each key, of which there are at most so many.
type nursery struct {
	handler   *handler // that children are made of
	shared    *child   // nil: each key has its own
	most      int
	kids      int       // children of keys, with those that are being made and those that have to finish their last runs
	idle      list[key] // keys with a child of their own that does nothing, least recently used first
	childless queue     // keys that wait for another key's child to end
}

// child is one incarnation of the handler for a key.
type child struct {
	value   any
	of      *handler
	values  values
	number  int
	started time.Time
	shared  bool // the value belongs to all keys
	runs    int  // not counted when shared
	over    bool // no new runs; it is stopped when runs is 0
	former  bool // its handler was changed: it finishes its last runs, and is not one of those that may be
}

func newNursery(opts Options, now time.Time) nursery {
	n := nursery{most: opts.Config.MaxChildren, childless: queue{mark: markChildless}}
	n.take(opts, now)
	return n
}

// room tells whether a child can be made now, if need be in the place of an idle one.
func (n *nursery) room() bool { return n.kids < n.most || n.idle.n > 0 }

// holdChild counts a run of a child of k's own, which is then not idle.
func (n *nursery) holdChild(c *child, k *key) {
	if c.shared {
		return
	}
	c.runs++
	n.idle.remove(&k.inIdle)
}

// releaseChild ends what holdChild began.
func (n *nursery) releaseChild(t *turn, c *child, k *key) {
	if c.shared {
		return
	}
	c.runs--
	switch {
	case c.runs > 0:
	case c.over:
		n.endChild(t, c)
	case k.child == c:
		n.idle.push(&k.inIdle, k)
		n.adopt(t)
	}
}

// mayRetire lets another key have the place of k's child, which has nothing to do now.
func (n *nursery) mayRetire(t *turn, k *key) {
	c := k.child
	if c == nil || c.shared || c.runs > 0 || n.idle.has(&k.inIdle) || t.now.Before(k.firstTurn()) {
		return
	}
	n.idle.push(&k.inIdle, k)
	n.adopt(t)
}

// firstTurn is until when the fresh child of a probing key is kept for its first message, which is called back when the grace is over. Keys
// that are more than there may be children would end each other's before any got a message.
func (k *key) firstTurn() time.Time {
	switch s, probing := k.state.(*probing); {
	case !probing || s.probe != nil:
		return time.Time{}
	case k.messages() > 0:
		return s.grace
	default:
		return s.grace.Add(calledWithin)
	}
}

// retireUnused lets others have the places of children that do nothing, also of keys with messages: while the route does not flow, only the key that
// is asked needs a child, and no other one has a turn in which it would find out that it does not need its own.
func (n *nursery) retireUnused(t *turn) {
	for _, k := range t.keys {
		n.mayRetire(t, k)
	}
}

// retire ends k's child once its runs have returned; a shared value lives on.
func (n *nursery) retire(t *turn, k *key) {
	c := k.child
	k.child, k.stale = nil, k.runs
	if c == nil || c.shared {
		return
	}
	n.idle.remove(&k.inIdle)
	c.over = true
	if c.runs == 0 {
		n.endChild(t, c)
	}
}

func (n *nursery) endChild(t *turn, c *child) {
	if !c.former {
		n.kids--
		n.adopt(t)
	}
	if c.of.end != nil {
		t.group.goes.Add(1)
		go t.group.stop(c.of, c.value, t.opts.Timeout)
	}
}

// stop ends the value of a child on a goroutine of its own.
func (g *Group) stop(of *handler, value any, timeout time.Duration) {
	defer g.leave()
	g.stopValue(of, value, timeout)
}

func (g *Group) stopValue(of *handler, value any, timeout time.Duration) {
	if of.end == nil {
		return
	}
	ctx, cancel := context.WithTimeout(g.background(), timeout)
	defer cancel()
	defer func() { _ = recover() }() // it is over anyway
	of.end(ctx, value)
}

// adopt lets the next key that waits for a child try again: one ended or is idle.
func (n *nursery) adopt(t *turn) {
	for n.childless.len() > 0 {
		k := n.childless.pop()
		if !k.gone && k.child == nil && k.messages() > 0 {
			t.makeReady(k)
			return
		}
	}
}

// make begins to make a child for k; it takes a slot meanwhile. A shared child is there at once. When there are as many
// children as there may be, the one idle longest makes room, or k waits until there is such a one.
func (n *nursery) make(t *turn, k *key) {
	if k.birth != nil {
		return
	}
	if !n.room() && !t.route.flows() {
		n.retireUnused(t)
	}
	if !n.room() || t.held && !t.freed {
		n.childless.push(k)
		return
	}
	for n.kids >= n.most && n.idle.n > 0 { // more than one when there may be fewer than before
		n.retire(t, n.idle.first())
	}
	if n.shared == nil && n.kids >= n.most {
		n.childless.push(k)
		return
	}
	k.children++
	t.counts.Children++
	if n.shared != nil {
		k.child = n.incarnation(k.children, t.now)
		return
	}
	n.kids++
	b := &birth{k: k, of: n.handler, epoch: t.slots.epoch, deadline: t.now.Add(t.opts.Timeout), timeout: t.opts.Timeout}
	b.ctx, b.cancel = context.WithDeadline(t.group.background(), b.deadline)
	k.birth = b
	t.slots.expect(b)
	t.alarm.arm(b.next())
	t.group.goes.Add(1)
	go t.group.begin(b)
}
