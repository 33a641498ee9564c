package supervisor

// Pause lets nothing of the route start until Resume. What runs goes on; Free is zero.
func (g *Group) Pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = true
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
