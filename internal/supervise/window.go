package supervise

import "time"

// usage is how much of something is held.
type usage struct{ messages, bytes int }

func (u *usage) add(m *Message)  { u.messages, u.bytes = u.messages+1, u.bytes+m.Size }
func (u *usage) took(m *Message) { u.messages, u.bytes = u.messages-1, u.bytes-m.Size }

// window counts the messages that may start as soon as there is a slot. They are in the lines fresh and returned of their keys.
// How large the window is depends on how many messages were handled lately: handlers must not wait for the network, and
// messages must not wait here when another instance could have them.
type window struct {
	usage
	alone usage // of that, what must run alone
	back  int   // of that, what was called back
	meter meter
	// Free was asked, and its asker wants to know when no more than lowWater messages are left.
	asked    bool
	lowWater int
}

// What a group holds before it starts it, beside the stash: at most MaxWindow messages, or as many as its concurrency, and
// MaxWindowBytes of them: that is some hundred messages of 64 KiB. More would cost memory, and nothing is faster for it.
const (
	MaxWindow      = 8192
	MaxWindowBytes = 16 << 20
)

func (w *window) put(m *Message) {
	w.add(m)
	if m.called {
		w.back++
	}
	if m.Alone {
		w.alone.add(m)
	}
}

func (w *window) take(m *Message) {
	w.took(m)
	if m.called {
		w.back--
	}
	if m.Alone {
		w.alone.took(m)
	}
}

// crowding is what of the window keeps more messages from coming. Those that must run alone take turns with the others: as
// many as a window may hold do not count, or nothing would come that could run in the meantime.
func (w *window) crowding() usage {
	return usage{w.messages - min(w.alone.messages, MaxWindow), w.bytes - min(w.alone.bytes, MaxWindowBytes)}
}

// full tells whether the window keeps more messages from coming, or soon will, while so many run.
func (w *window) full(running, concurrency int, now time.Time) bool {
	used := w.crowding()
	return used.messages+running >= w.meter.window(now, concurrency) || used.bytes >= MaxWindowBytes/2
}

// free is for what there is room while so many run. Whoever asks is told when half of that is used.
func (w *window) free(running, concurrency int, now time.Time) Room {
	size := w.meter.window(now, concurrency)
	used := w.crowding()
	w.asked, w.lowWater = true, size/2
	return Room{max(0, size-used.messages-running), max(0, MaxWindowBytes-used.bytes)}
}

// low reports once, after free was asked, that half of that is used.
func (w *window) low(running int) bool {
	if !w.asked || w.crowding().messages+running > w.lowWater {
		return false
	}
	w.asked = false
	return true
}

// meter counts what was handled lately.
type meter struct {
	since     time.Time
	done, was int
}

const meterPeriod = 250 * time.Millisecond

// window is how many messages may be here, with those that run.
func (m *meter) window(now time.Time, concurrency int) int {
	m.roll(now)
	return concurrency + min(max(concurrency, m.done, m.was), MaxWindow)
}

func (m *meter) roll(now time.Time) {
	switch age := now.Sub(m.since); {
	case age < meterPeriod:
	case age < 2*meterPeriod:
		m.since, m.was, m.done = now, m.done, 0
	default:
		m.since, m.was, m.done = now, 0, 0
	}
}

// Room is how many messages and bytes there is room for.
type Room struct{ Messages, Bytes int }

// Free is how many more messages, of how many bytes in all, the group could use now, and whether it starts any. While the
// route waits that is what the stash has room for; see roomForProbes.
func (g *Group) Free() (room Room, flows bool) {
	t := g.lock()
	defer t.unlock()
	if t.standsStill() {
		return Room{}, false
	}
	if !t.route.flows() {
		return t.window.roomForProbes(t), false
	}
	t.window.spill(t)
	room = t.window.free(t.slots.running.n, t.opts.Concurrency, t.now)
	room.Messages = t.order.room(room.Messages, &t.stash)
	if (t.window.jammed(t) || t.window.wary(t) || len(t.aside.buckets) > 0) && len(t.aside.all) < maxAside {
		room.Messages = max(room.Messages, roomToAsk)
	}
	return room, true
}

// roomForProbes is what is asked for while the route waits. What the stash has no room for is put aside, so that what is behind comes
// too: it may be what succeeds. When maxAside are, no more are asked for than were called back, or could be asked.
func (w *window) roomForProbes(t *turn) Room {
	if len(t.aside.all) < maxAside {
		return Room{max(roomToAsk, 2*t.opts.Concurrency), t.opts.StashBytes}
	}
	if t.route.inquiry.askableNow(t, unjudged) == nil && t.aside.fresh.n == 0 {
		return Room{2 * t.opts.Concurrency, t.opts.StashBytes}
	}
	return Room{t.aside.ripe() + t.order.ripe(), t.opts.StashBytes}
}

// roomToAsk is for how many messages a route that waits asks at once.
const roomToAsk = 1024

// tellMore asks for more messages once half of what Free told last has been used.
func (w *window) tellMore(t *turn) {
	if w.low(t.slots.running.n) {
		t.call(t.opts.More)
	}
}
