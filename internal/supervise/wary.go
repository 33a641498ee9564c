package supervise

// A route flows as soon as one message succeeds, and nearly all others may go on to fail: what failed before is behind others, and its
// handlers may be slow. What comes now would wait until all of that was tried. So the newest message and the oldest start in turn, of those
// that are here for the first time: for a while after the route began to flow, and then while half of what is new fails. The newest is that of a key
// that did not fail lately, if there is one; and a key whose last message succeeded comes before its turn. While nearly all of
// it fails and the window is full, more is pulled than the window holds, and what is in its middle goes aside. So does what comes back by
// itself when many messages that came back wait already. With order: key the first message of a key says whether the key is new.

// wary tells whether nearly all of what is new fails while the window is full.
func (w *window) wary(t *turn) bool {
	return t.route.flows() && t.route.evidence.nearlyAll() && w.full(t.slots.running.n, t.opts.Concurrency, t.now)
}

// wideWindow is how many keys with messages that are here for the first time the window holds at least while the route is wary.
const wideWindow = 256

// nearlyAllFailed is why messages go aside although their route flows.
const nearlyAllFailed = "nearly all messages before it failed"

// makeWay puts aside what is in the middle of a window that is too full.
func (w *window) makeWay(t *turn) {
	if !w.wary(t) {
		return
	}
	most := max(wideWindow, 2*w.meter.window(t.now, t.opts.Concurrency))
	for q := &t.slots.ready[fresh]; q.len() > most; {
		k := q.takeAt(q.len() / 2)
		if k.gone || k.fresh.n == 0 {
			continue // it has its turns with those that were here before
		}
		for m := k.fresh.last(); m != nil; m = k.fresh.last() { // of an ordered key the newest first, so that the rest may go on in order
			t.take(k, m)
			t.aside.putOn(t, &t.aside.fresh, k, m, t.aside.until(m, t.route.waitOf(k)), nearlyAllFailed, k.lastErr)
		}
		k.attend(t)
	}
}

// newestNext tells whether the next message of those that are here for the first time is to be the newest. Each call is for one start.
func (r *route) newestNext() bool {
	switch {
	case r.anew > 0:
		r.anew--
	case r.evidence.failed == 0 || !r.evidence.half():
		return false
	}
	r.inquiry.newest = !r.inquiry.newest
	return r.inquiry.newest
}
