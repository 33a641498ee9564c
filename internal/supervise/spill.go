package supervise

import "time"

// stalledAfter is how long a key may hold its slots without finishing anything before its messages make room for others.
const stalledAfter = time.Second

// spill moves the messages of stalled keys from a full window to the stash: a key whose handlers, or whose factory, hang
// must not keep the pull loop from fetching the messages of others. Nor may messages that wait for retries of other keys. It looks
// for such keys once in a meterPeriod, and each time while the window is jammed.
func (w *window) spill(t *turn) {
	if !w.full(t.slots.running.n, t.opts.Concurrency, t.now) || t.now.Sub(t.slots.spilled) < meterPeriod && !t.slots.jammed {
		return
	}
	t.slots.spilled, t.slots.jammed = t.now, false
	for r := range t.slots.running.all() {
		k := r.k
		started := t.slots.began(r)
		if k.fresh.n+k.returned.n > 0 && t.now.Sub(started) >= stalledAfter && t.now.Sub(k.lastDone) >= stalledAfter && t.slots.full(k) {
			k.stashWindow(t)
			t.slots.jammed = t.slots.jammed || k.hung || k.trouble.failures > 0
		}
	}
	t.limits.spill(t)
	for _, b := range t.slots.births {
		if t.now.Sub(b.began()) >= stalledAfter {
			b.k.stashWindow(t)
		}
	}
	t.stash.bound(t)
}

// jammed tells whether messages of keys that failed or hung before, and do not go on, filled the window, or with order: key fill the stash.
// Thousands of them may come before one of another key, so more is pulled than there is room for.
func (w *window) jammed(t *turn) bool {
	if t.opts.Ordered {
		return t.order.jammed(&t.stash)
	}
	return t.slots.jammed && t.now.Sub(t.slots.spilled) < meterPeriod
}
