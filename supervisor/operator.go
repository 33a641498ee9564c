package supervisor

import "time"

// Pause lets nothing of the route start until Resume. What runs goes on; Free is zero. What has not started is given back, so
// that whoever is resumed first, on whatever instance, can have it.
func (g *Group) Pause() {
	t := g.lock()
	if !t.paused {
		t.paused = true
		for _, k := range t.keys {
			for _, l := range []*list{&k.stash, &k.later, &k.due, &k.fresh} {
				for l.first != nil {
					m := l.first
					t.take(k, m)
					due := m.Due
					if !due.After(t.now) {
						due = time.Time{} // at once
					}
					t.giveBack(m, due, "the route is paused", nil)
				}
			}
			t.settleKey(k)
		}
	}
	t.unlock()
}

// turnAwayPaused gives a message back that arrives although the route is paused: it was asked for before, or for another
// route of its durable. It stays away for a while, longer each time, and Resume calls it back.
func (t *turn) turnAwayPaused(m *Message) {
	t.giveBack(m, t.now.Add(inVain(m)), "the route is paused", nil)
	t.last().Suspended = true
}

// Knows tells whether the key has messages, runs, failures or a suspension now.
func (g *Group) Knows(key string) bool {
	t := g.lock()
	defer t.unlock()
	return t.keys[key] != nil
}

// Resume ends a Pause.
func (g *Group) Resume() {
	t := g.lock()
	if t.paused {
		t.paused = false
		for k := t.stashed.first; k != nil; k = k.lists[t.stashed.id].next {
			t.makeReady(k)
		}
		t.startAll()
		t.call(t.opts.More)
	}
	t.unlock()
}

// SuspendKey sends everything of a key away until ResumeKey, whether or not it has messages now.
func (g *Group) SuspendKey(name, why string) {
	t := g.lock()
	k := t.keys[name]
	if k == nil {
		k = t.newKey(name)
	}
	k.gaveUp = false
	if k.state != Suspended {
		t.cancelRuns(k)
		t.retire(k)
		t.suspend(k, why)
		t.idle.remove(k) // never forgotten
		t.startAll()
		t.tellMore()
	}
	t.unlock()
}

// ResumeKey lets a suspended key probe. It reports whether the key was suspended.
func (g *Group) ResumeKey(name string) bool {
	t := g.lock()
	k := t.keys[name]
	suspended := k != nil && k.state == Suspended
	if suspended {
		t.resume(k)
		t.startAll()
	}
	t.unlock()
	return suspended
}
