package supervise

import "time"

// Pause lets nothing of the route start until Resume. What runs goes on; Free is zero. What has not started is given back, so
// that whoever is resumed first, on whatever instance, can have it.
func (g *Group) Pause() {
	t := g.lock()
	if !t.paused {
		t.paused = true
		for _, k := range t.keys {
			k.emptyAll(t, t.sendAwayPaused)
			k.finish(t)
		}
	}
	t.unlock()
}

// sendAwayPaused gives a message back that waited here: at once, or when its own delay is over.
func (t *turn) sendAwayPaused(_ *key, m *Message) {
	due := time.Time{}
	if m.Due.After(t.now) {
		due = m.Due
	}
	t.giveBack(m, due, "the route is paused", nil)
}

// turnAwayPaused gives a message back that arrives although the route is paused: it was asked for before, or for another
// route of its durable. It stays away for a while, longer each time, and Resume calls it back.
func (t *turn) turnAwayPaused(k *key, m *Message) {
	t.aside.put(t, k, m, t.now.Add(inVain(m)), "the route is paused", nil)
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
		t.order.expectAbsent(t.keys)
		for k := range t.stash.keys.all() {
			t.makeReady(k)
		}
		t.startAll()
		t.call(t.opts.More)
	}
	t.unlock()
}
