package supervise

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// told is a Work that notes what it is told.
type told struct {
	name string
	say  func(string)
}

func (told) Do(context.Context, int, any) Verdict { return ok }
func (w told) Settle(o Outcome)                   { w.say(fmt.Sprint(w.name, " ", o.Why)) }
func (told) Away() Away                           { return nil }
func (told) Remember(Outcome, func(bool))         {}

func TestTurn_othersAreToldInOrderOnceTheLockIsReleased(t *testing.T) {
	var g *Group
	var said []string
	say := func(what string) {
		if !g.mu.TryLock() {
			t.Errorf("%q is told under the lock", what)
			return
		}
		g.mu.Unlock()
		said = append(said, what)
	}
	g = New(Options{Event: func(e Event) { say(e.Why) }})
	defer g.Close(t.Context())
	turn := g.lock()
	turn.call(func() { say("call") })
	turn.tell(Event{Why: "event"})
	for _, name := range []string{"a", "b", "c"} {
		turn.settle(&Message{Work: told{name, say}}, Outcome{Why: "first"})
		turn.last().Why = "last"
	}
	if len(said) > 0 {
		t.Errorf("told before the turn was over: %q", said)
	}
	turn.unlock()
	if want := []string{"a last", "b last", "c last", "event", "call"}; !slices.Equal(said, want) {
		t.Errorf("told %q, want %q", said, want)
	}
}

// What a message costs is bounded by its garbage: a turn that does not stay on the stack would be most of it.
func TestTurn_costsNoMemory(t *testing.T) {
	g := New(Options{})
	defer g.Close(t.Context())
	if n := testing.AllocsPerRun(100, func() { g.Deliver(); g.Free() }); n > 0 {
		t.Errorf("a turn that does nothing allocates %v times", n)
	}
}
