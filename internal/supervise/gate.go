package supervise

import (
	"fmt"
	"time"
)

// gate holds the later messages of an ordered route while earlier ones are on their way: those that a former life of the
// process had in hand, and those whose delivery was lost. The server delivers these again only after AckWait, and later
// ones at once.
type gate struct {
	above   uint64 // sequences above it wait
	since   time.Time
	until   time.Time
	arrived bool // what they wait for is with the owner: until does not count
}

// HoldAbove makes an ordered group hold messages with a sequence above this one until then, or until it is told otherwise:
// the last call of it or of HoldBehind counts, and a time that is over lets all of them go.
func (g *Group) HoldAbove(above uint64, until time.Time) { g.hold(gate{above: above, until: until}) }

// HoldBehind is HoldAbove until it is told otherwise, for messages whose turn comes when those before them were delivered to the group, which the
// owner has by now and looks up.
func (g *Group) HoldBehind(above uint64) { g.hold(gate{above: above, arrived: true}) }

func (g *Group) hold(now gate) {
	if !g.opts.Ordered {
		return
	}
	t := g.lock()
	gate := &t.order.gate
	if now.since = gate.since; !gate.isShut(t.now) {
		now.since = t.now
	}
	*gate = now
	for k := range t.stash.keys.all() {
		k.attend(t)
	}
	t.startAll()
	t.unlock()
}

func (g *gate) isShut(now time.Time) bool { return g.arrived || now.Before(g.until) }

func (g *gate) holds(m *Message, now time.Time) bool {
	return m.Sequence > g.above && !m.Replayed && g.isShut(now)
}

// why is what is said of a message that it holds.
func (g *gate) why() string {
	if g.arrived {
		return "messages before it have arrived, and how often they were tried is being looked up"
	}
	return fmt.Sprintf("messages above %d were delivered and have not arrived", g.above)
}

// Expect says that a message of a key will be redelivered, although the group does not have it: its delivery could not be
// used. Later messages of an ordered key wait for it.
func (g *Group) Expect(key string, sequence uint64) {
	if !g.opts.Ordered {
		return
	}
	t := g.lock()
	defer t.unlock()
	t.order.away(t, &Message{Key: key, Sequence: sequence, numbering: t.order.numbering}, t.now)
}

// Ended says that a message of a key was redelivered and that its owner settles it: it will not be delivered to the group. Later
// messages of an ordered key stop waiting for it.
func (g *Group) Ended(key string, sequence uint64) {
	if !g.opts.Ordered {
		return
	}
	t := g.lock()
	defer t.unlock()
	if k := t.keys[key]; k != nil && !t.closing {
		k.outside.back(sequence)
		k.attend(t)
		t.startAll()
	}
}

// Renumbered says that the sequences of the stream begin again that the group's messages come from. What an ordered group
// still expects will never be redelivered. Messages from before that wait in it are let go, for they will not be redelivered either, and new ones of
// their key would stand behind them.
func (g *Group) Renumbered() {
	t := g.lock()
	t.order.numbering.others++
	t.order.gate = gate{}
	t.order.beginAgain(t)
	t.unlock()
}

// RenumberedReplays is Renumbered for the sequences of replayed messages.
func (g *Group) RenumberedReplays() {
	t := g.lock()
	t.order.numbering.replayed++
	t.order.beginAgain(t)
	t.unlock()
}

// beginAgain forgets what was expected, and what is from before.
func (o *order) beginAgain(t *turn) {
	o.called, t.aside.fresh.called, t.aside.judged.called = 0, 0, 0
	for _, k := range t.keys {
		k.outside = outside{}
		o.letGoFormer(t, k)
		k.attend(t)
	}
	t.startAll()
}

// letGoFormer lets go of what k holds from before sequences began again.
func (o *order) letGoFormer(t *turn, k *key) {
	var former []*Message
	for _, line := range k.lines() {
		for m := range line.all() {
			if o.former(m) {
				former = append(former, m)
			}
		}
	}
	for _, m := range former {
		t.take(k, m)
		t.settle(m, Outcome{Action: LetGo, Why: "what it was delivered from is gone"})
	}
}
