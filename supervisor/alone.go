package supervisor

import "time"

// A handler can end the whole process, and then nobody is left to say whose message it was. Messages under that suspicion
// (Message.Alone) start only while the group is held and nothing else runs in it; whoever holds all groups of a process
// starts them one at a time.
//
//	next ── chooses m.Alone ──▶ waits in alone ──▶ Options.Alone is told
//	                                                 └ Hold, until Busy is 0 ── StartAlone … StartAlone ── Release

// Hold lets nothing start until Release but by StartAlone. What runs goes on. Free is zero meanwhile.
func (g *Group) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
}

// Release ends a Hold.
func (g *Group) Release() {
	var fx effects
	now := g.lock()
	g.held = false
	for g.alone.len() > 0 {
		k := g.alone.pop()
		k.alone = false
		g.makeReady(k)
	}
	for n := g.orphans.len(); n > 0; n-- {
		g.adopt()
	}
	g.startAll(now)
	fx.calls = append(fx.calls, g.opts.More)
	g.unlock(&fx)
}

// Busy is how many handlers and factories run now, and how many were given up and run nevertheless.
func (g *Group) Busy() (running, stuck int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy(), g.stuck
}

// StartAlone starts one of the messages that must run alone, or the making of its child, if the group is held and
// nothing runs in it. It reports whether it did. Options.Alone is told when that is over.
func (g *Group) StartAlone() bool {
	now := g.lock()
	defer g.mu.Unlock()
	if !g.held || g.closing || g.paused || g.busy() > 0 || g.route.state == Waiting {
		return false
	}
	g.freed = true // for what is chosen here
	defer func() { g.freed = false }()
	var r *run
	if g.route.state == Probing {
		r = g.startRouteProbe(now)
	}
	for r == nil && g.route.state == Flowing && g.alone.len() > 0 {
		k := g.alone.pop()
		k.alone = false
		switch m := g.choose(k, 1, now); {
		case m != nil && m.Alone:
			r = g.start(k, m, now)
			g.holdBack(k) // there may be more behind it
		case k.birth != nil:
			g.holdBack(k)
			return true
		default:
			g.makeReady(k)
		}
	}
	if r == nil {
		return len(g.births) > 0
	}
	g.goes.Add(1)
	go g.work(r)
	return true
}

// apart tells whether m has to wait until it can run alone, and if so sees to it.
func (g *Group) apart(k *key, m *Message) bool {
	if !m.Alone || g.opts.Alone == nil {
		return false
	}
	g.holdBack(k)
	g.opts.Alone()
	return true
}

func (g *Group) holdBack(k *key) {
	if !k.alone {
		k.alone = true
		g.alone.push(k)
	}
}

// calm tells those who wait for it that nothing runs any more.
func (g *Group) calm() {
	if g.busy() > 0 {
		return
	}
	if g.closing {
		g.quiet()
	}
	if g.held && g.opts.Alone != nil {
		g.opts.Alone()
	}
}

// preparing is how long a preparation may take before it counts as a hang: longer than whatever it asks for.
const preparing = 30 * time.Second

func (g *Group) preparer(m *Message) Preparer {
	if !m.Alone || g.opts.Alone == nil {
		return nil
	}
	p, _ := m.Work.(Preparer)
	return p
}

// prepare returns false when r is not to be attempted. Its clock begins when it returns.
func (g *Group) prepare(r *run, res *result) bool {
	p := g.preparer(r.m)
	if p == nil {
		return true
	}
	v, ready := p.Prepare()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !ready || r.hung {
		res.verdict = v
		return false
	}
	r.deadline = time.Now().Add(g.opts.Timeout)
	g.arm(r.deadline)
	return true
}

// Started is how many attempts were started so far.
func (g *Group) Started() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts.Started
}
