package supervisor

import "time"

// Pause lets nothing of the route start until Resume. What runs goes on; Free is zero. What has not started is given back, so
// that whoever is resumed first, on whatever instance, can have it.
func (g *Group) Pause() {
	var fx effects
	now := g.lock()
	if !g.paused {
		g.paused = true
		for _, k := range g.keys {
			for _, l := range []*list{&k.stash, &k.later, &k.due, &k.fresh} {
				for l.first != nil {
					m := l.first
					g.take(k, m)
					due := m.Due
					if !due.After(now) {
						due = time.Time{} // at once
					}
					g.giveBack(m, due, now, "the route is paused", nil, &fx)
				}
			}
			g.settleKey(k, now)
		}
	}
	g.unlock(&fx)
}

// turnAwayPaused gives a message back that arrives although the route is paused: it was asked for before, or for another
// route of its durable. It stays away for a while, longer each time, and Resume calls it back.
func (g *Group) turnAwayPaused(m *Message, now time.Time, fx *effects) {
	g.giveBack(m, now.Add(inVain(m)), now, "the route is paused", nil, fx)
	fx.last().Suspended = true
}

// Knows tells whether the key has messages, runs, failures or a suspension now.
func (g *Group) Knows(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.keys[key] != nil
}

// Resume ends a Pause.
func (g *Group) Resume() {
	var fx effects
	now := g.lock()
	if g.paused {
		g.paused = false
		for k := g.stashed.first; k != nil; k = k.lists[g.stashed.id].next {
			g.makeReady(k)
		}
		g.startAll(now)
		fx.calls = append(fx.calls, g.opts.More)
	}
	g.unlock(&fx)
}

// SuspendKey sends everything of a key away until ResumeKey, whether or not it has messages now.
func (g *Group) SuspendKey(name, why string) {
	var fx effects
	now := g.lock()
	k := g.keys[name]
	if k == nil {
		k = g.newKey(name)
	}
	k.gaveUp = false
	if k.state != Suspended {
		g.cancelRuns(k)
		g.retire(k)
		g.suspend(k, why, now, &fx)
		g.idle.remove(k) // never forgotten
		g.startAll(now)
		g.tellMore(&fx)
	}
	g.unlock(&fx)
}

// ResumeKey lets a suspended key probe. It reports whether the key was suspended.
func (g *Group) ResumeKey(name string) bool {
	var fx effects
	now := g.lock()
	k := g.keys[name]
	suspended := k != nil && k.state == Suspended
	if suspended {
		g.resume(k, now, &fx)
		g.startAll(now)
	}
	g.unlock(&fx)
	return suspended
}
