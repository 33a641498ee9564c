package supervisor

import (
	"context"
	"fmt"
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
		g.stopChild(c)
	case k.child == c:
		g.alive.push(k)
	}
}

// retire ends k's child once its runs have returned; a shared value lives on.
func (g *Group) retire(k *key) {
	c := k.child
	k.child = nil
	if c == nil || c.shared {
		return
	}
	g.alive.remove(k)
	g.kids--
	c.over = true
	if c.runs == 0 {
		g.stopChild(c)
	}
}

func (g *Group) stopChild(c *child) {
	if g.opts.Stop == nil {
		return
	}
	g.goes.Add(1)
	go func() {
		defer g.leave()
		ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timeout)
		defer cancel()
		defer func() { _ = recover() }() // it is over anyway
		g.opts.Stop(ctx, c.value)
	}()
}

// make begins to make a child for k; it takes a slot meanwhile. A shared child is there at once.
func (g *Group) make(k *key) {
	if k.starting {
		return
	}
	k.children++
	g.counts.Children++
	if g.shared != nil {
		k.child = &child{value: g.shared.value, number: k.children, shared: true, started: time.Now()}
		return
	}
	if g.kids >= g.cfg.MaxChildren && g.alive.first != nil {
		g.retire(g.alive.first)
	}
	k.starting = true
	g.kids++
	g.making++
	g.goes.Add(1)
	go g.begin(k)
}

// begin makes a child on its own goroutine.
func (g *Group) begin(k *key) {
	defer g.leave()
	var value any
	err := error(&PanicError{Goexit: true})
	defer func() { g.begun(k, value, err) }() // runs after Goexit too
	func() {
		defer func() {
			if v := recover(); v != nil {
				err = newPanicError(v, false)
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), g.opts.Timeout)
		defer cancel()
		value, err = g.opts.New(ctx, k.name)
	}()
}

func (g *Group) begun(k *key, value any, err error) {
	var fx effects
	now := time.Now()
	g.mu.Lock()
	k.starting = false
	g.making--
	switch {
	case g.closing || k.state == Suspended:
		g.kids--
		if err == nil {
			g.stopChild(&child{value: value})
		}
		if g.closing && g.busy() == 0 {
			g.quiet()
		}
	case err != nil:
		g.kids--
		g.stopped(k, err, fmt.Sprintf("%s did not start: %v", k.childName(), err), true, now, &fx)
	default:
		k.child = &child{value: value, number: k.children, started: now}
		g.alive.push(k)
		g.touch(k, now)
		if k.state == Probing {
			k.until = now.Add(*g.cfg.DrainGrace)
		}
	}
	g.attend(k, now, &fx)
	g.startAll(now)
	g.unlock(&fx)
}
