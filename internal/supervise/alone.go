package supervise

import "time"

// A handler can end the whole process, and then nobody is left to say whose message it was. Messages under that suspicion
// (Message.Alone) start only while the group is held and nothing else runs in it; whoever holds all groups of a process
// starts them one at a time.
//
//	next ── chooses m.Alone ──▶ waits in alone ──▶ Options.Alone is told
//	                                                 └ Hold, until Busy is 0 ── StartAlone … StartAlone ── Release

// Hold lets nothing start until Release, except by StartAlone. What runs continues. Free is zero meanwhile.
func (g *Group) Hold() {
	t := g.lock()
	defer t.unlock()
	t.held = true
}

// Release ends a Hold.
func (g *Group) Release() {
	t := g.lock()
	t.held = false
	for t.slots.alone.len() > 0 {
		t.makeReady(t.slots.alone.pop())
	}
	for n := t.nursery.childless.len(); n > 0; n-- {
		t.nursery.adopt(t)
	}
	t.startAll()
	t.call(t.opts.More)
	t.unlock()
}

// Busy is how many handlers and factories run now, and how many were given up but still run. It includes those of the
// fallback.
func (g *Group) Busy() (running, stuck int) {
	t := g.lock()
	running, stuck = t.atWork(), t.slots.stuck
	inner, given := t.fallback.group, t.opts.Stuck
	t.unlock()
	if inner != nil {
		_, more := inner.Busy()
		stuck += more
	}
	if given != nil {
		stuck += given()
	}
	return running, stuck
}

// StartAlone starts one of the messages that must run alone, or the making of its child, if the group is held and
// nothing runs in it. It reports whether it did. Options.Alone is told when that is over.
func (g *Group) StartAlone() bool {
	t := g.lock()
	defer t.unlock()
	if !t.held || t.closing || t.paused || t.atWork() > 0 || t.route.is() == Waiting || t.route.is() == Suspended {
		return false
	}
	t.freed = true // for what is chosen here
	defer func() { t.freed = false }()
	var r *run
	if t.route.is() == Probing {
		r = t.route.state.next(t)
	}
	for r == nil && t.route.flows() && t.slots.alone.len() > 0 {
		k := t.slots.alone.pop()
		switch m := t.slots.choose(t, k, returned); {
		case m != nil && m.Alone && t.limits.takes(k, m) != nil:
		case m != nil && m.Alone:
			r = t.slots.start(t, k, m)
			t.slots.alone.push(k) // there may be more behind it
		case k.birth != nil:
			t.slots.alone.push(k)
			return true
		default:
			t.makeReady(k)
		}
	}
	if r == nil {
		return len(t.slots.births) > 0
	}
	g.goes.Add(1)
	go g.work(r)
	return true
}

// runsAlone tells whether m may start only while nothing else runs.
func (o *Options) runsAlone(m *Message) bool { return m.Alone && o.Alone != nil }

// apart tells whether m has to wait until it can run alone, and if so sees to it.
func (s *slots) apart(k *key, m *Message) bool {
	if !s.opts.runsAlone(m) {
		return false
	}
	s.alone.push(k)
	s.opts.Alone()
	return true
}

// calm tells those who wait for it that nothing runs any more.
func (t *turn) calm() {
	if t.atWork() > 0 {
		return
	}
	if t.closing {
		t.tellQuiet()
	}
	if t.held && t.opts.Alone != nil {
		t.opts.Alone()
	}
}

// preparing is how long a preparation may take before it counts as a hang: longer than whatever it asks for.
const preparing = 30 * time.Second

func (g *Group) preparer(m *Message) Preparer {
	if !g.opts.runsAlone(m) {
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
	t := g.lock()
	defer t.unlock()
	if !ready || r.hung {
		res.verdict = v
		return false
	}
	r.deadline = t.now.Add(t.slots.timeout(r))
	t.alarm.arm(r.deadline)
	return true
}

// Started is how many attempts were started so far.
func (g *Group) Started() uint64 {
	t := g.lock()
	defer t.unlock()
	return t.counts.Started
}
