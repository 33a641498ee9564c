package supervisor

import "time"

// retrying keeps messages that failed before from taking all slots: while most of them fail again, they have half of the
// slots. If their handlers hang until the timeout, the other half is left to messages that nobody has judged.
type retrying struct {
	runs    int
	failed  float64 // how many of the last ones failed again, 0 to 1
	waiting keyQueue
}

// hold queues a key whose next message failed before.
func (t *retrying) hold(k *key) {
	if !k.retry {
		k.retry = true
		t.waiting.push(k)
	}
}

// enoughRetries tells whether no more messages that failed before may start now.
func (g *Group) enoughRetries() bool {
	return g.retrying.failed > 0.5 && g.retrying.runs >= max(1, g.slots()/2)
}

// endRetry counts out a run of a message that failed before.
func (g *Group) endRetry(r *run) {
	if r.first {
		return
	}
	g.retrying.runs--
	g.releaseRetries()
}

// judgeRetry notes how the run of a message that failed before ended.
func (g *Group) judgeRetry(r *run, failed bool) {
	if r.first {
		return
	}
	t := &g.retrying
	if t.failed -= t.failed / 8; failed {
		t.failed += 1.0 / 8
	}
	g.releaseRetries()
}

// releaseRetries lets keys go on whose retries waited: as many as may start now.
func (g *Group) releaseRetries() {
	t := &g.retrying
	room := max(1, g.slots()/2) - t.runs
	for t.waiting.len() > 0 && (room > 0 || t.failed <= 0.5) {
		k := t.waiting.pop()
		k.retry = false
		if g.keys[k.name] == k && k.messages() > 0 && (k.state == Flowing || k.state == Probing) {
			g.makeReady(k)
			room--
		}
	}
}

// stashRetries makes room in the window, which keeps more messages from coming: what has to wait for other retries waits in the
// stash.
func (g *Group) stashRetries(now time.Time, fx *effects) {
	for _, k := range g.retrying.waiting.items[g.retrying.waiting.head:] {
		if g.keys[k.name] == k {
			g.stashWindow(k, now, fx)
		}
	}
}
