package supervise

import (
	"fmt"

	"github.com/relaymq/relay/supervisor"
)

// suspended: everything of the key is sent away until an operator resumes it.
type suspended struct {
	still
	// deadLetters says that what comes goes to the dead letters, and not back: on_give_up says so.
	deadLetters bool
}

func (*suspended) is() State { return Suspended }

// stopped: the child stopped cleanly under trigger: failure, and that was that. The next message begins anew.
type stopped struct{ still }

func (stopped) is() State { return Stopped }

// gaveUp tells whether what comes goes to the dead letters.
func (k *key) gaveUp() bool {
	s, ok := k.state.(*suspended)
	return ok && s.deadLetters
}

// suspend sends everything of k away until it is resumed.
func (k *key) suspend(t *turn, how suspended, why string) {
	k.flow, k.stops = flowing{}, nil
	k.move(&t.moment, &how, why, 0)
	k.emptyAll(t, t.refuse)
}

// giveUp ends the restarts of k, as on_give_up says.
func (k *key) giveUp(t *turn, why string) {
	t.nursery.retire(t, k)
	k.suspend(t, suspended{deadLetters: t.cfg.OnGiveUp == supervisor.GiveUpDeadLetter}, "gave up: "+why)
	if escalate := t.opts.Escalate; escalate != nil && t.cfg.OnGiveUp == supervisor.GiveUpExit {
		err := fmt.Errorf("key %q gave up: %s", k.name, why)
		t.call(func() { escalate(err) })
	}
}

// resume lets a suspended key probe.
func (k *key) resume(t *turn) {
	k.restarts, k.tripped = 0, false
	k.endRow()
	k.probe(t, "resumed")
	k.attend(t)
}

// SuspendKey gives back all messages of a key until ResumeKey, whether or not it has messages now.
func (g *Group) SuspendKey(name, why string) {
	t := g.lock()
	defer t.unlock()
	k := t.keys[name]
	if k == nil {
		k = t.newKey(name)
	}
	if s, ok := k.state.(*suspended); ok {
		s.deadLetters = false
		return
	}
	t.slots.cancelRuns(k)
	t.nursery.retire(t, k)
	k.suspend(t, suspended{}, why)
	t.lingering.remove(&k.inLingering) // never forgotten
	t.startAll()
	t.window.tellMore(t)
}

// ResumeKey lets a suspended key probe. It reports whether the key was suspended.
func (g *Group) ResumeKey(name string) bool {
	t := g.lock()
	defer t.unlock()
	k := t.keys[name]
	if k == nil || !k.is(Suspended) {
		return false
	}
	k.resume(t)
	t.startAll()
	return true
}
