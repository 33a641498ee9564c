package caller

import (
	"context"
	"errors"
	"testing"
	"time"
)

// gate is for a message of one of the callers: yes, no, mute, or gone.
func (w *askers) gate(who string, about About) (*Gates, *Gate) {
	gates := NewGates(w.cfg)
	w.t.Cleanup(gates.Close)
	about.ID, about.Subject = func() string { return who }, "orders"
	gate := gates.Gate(Call{Interest: w.inbox + "." + who}, about)
	return gates, gate
}

func (w *askers) ctx(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	w.t.Cleanup(cancel)
	return ctx
}

// What each caller says of a message that has its slot, and that it says nothing.
func TestGate_MayStart(t *testing.T) {
	t.Parallel()
	for _, drop := range []bool{false, true} {
		w := newAskers(t, 100, Rules{Timeout: 500 * time.Millisecond, Drop: drop, Slots: 10})
		_, yes := w.gate("yes", About{})
		if d := yes.MayStart(w.ctx(time.Minute)); !d.Start || yes.Ended() != nil {
			t.Errorf("yes: %+v", d)
		}
		asked := w.count[CountedYes].Load()
		if d := yes.StillWanted(t.Context()); !d.Start || w.count[CountedYes].Load() != asked {
			t.Errorf("a moment later nobody is asked again: %+v", d)
		}
		yes.checked = time.Now().Add(-HeardLately)
		if d := yes.StillWanted(t.Context()); !d.Start || w.count[CountedYes].Load() != asked+1 {
			t.Errorf("after a while it is asked again: %+v", d)
		}
		_, no := w.gate("no", About{})
		if d := no.MayStart(w.ctx(time.Minute)); d.Start || d.End == nil || d.End != no.Ended() || d.End.Err != ErrForgotten || d.End.Expired() {
			t.Errorf("no: %+v", d)
		}
		_, mute := w.gate("mute", About{})
		if d := mute.MayStart(w.ctx(time.Minute)); d.Start == drop || drop && (d.End == nil || !errors.Is(d.End.Err, ErrForgotten)) {
			t.Errorf("no answer, drop %v: %+v", drop, d)
		}
		if d := mute.MayStart(w.ctx(50 * time.Millisecond)); d.Start || d.End != nil || !errors.Is(d.Err, context.DeadlineExceeded) || d.Again > 0 {
			t.Errorf("interrupted: %+v", d)
		}
		_, gone := w.gate("gone", About{})
		d := gone.MayStart(w.ctx(time.Minute))
		if d.Start || d.End != nil || d.Again != AskAgain {
			t.Errorf("nobody is there, perhaps it reconnects: %+v", d)
		}
		for deadline := time.Now().Add(20 * time.Second); d.End == nil; d = gone.MayStart(w.ctx(time.Minute)) {
			if time.Now().After(deadline) {
				t.Fatalf("never gone: %+v", d)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if !errors.Is(d.End.Err, ErrAbsent) {
			t.Errorf("nobody is there for long: %+v", d.End)
		}
	}
}

// A caller who never answers must leave slots to others: half of them may wait for an answer.
func TestGate_muteOnesLeaveSlots(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 100, Rules{Timeout: time.Minute, Slots: 4})
	gates := NewGates(w.cfg)
	t.Cleanup(gates.Close)
	ctx, cancel := context.WithCancel(t.Context())
	decided := make(chan Decision, 5)
	for range 5 {
		g := gates.Gate(Call{Interest: w.inbox + ".mute"}, About{ID: func() string { return "m" }})
		go func() { decided <- g.MayStart(ctx) }()
	}
	for range 3 {
		if d := <-decided; d.Start || d.Again != AskAgain {
			t.Errorf("%+v", d)
		}
	}
	if n := gates.Asking(); n != 2 {
		t.Errorf("%d ask", n)
	}
	cancel()
	for range 2 {
		if d := <-decided; !errors.Is(d.Err, context.Canceled) {
			t.Errorf("%+v", d)
		}
	}
}

// A message without a slot is asked about first, and its answer counts for as long as the timeout; what did not answer twice starts all the same.
func TestGate_Ask(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 100, Rules{Timeout: 300 * time.Millisecond, Slots: 10})
	ask := func(g *Gate) Decision {
		t.Helper()
		then := make(chan Decision, 1)
		g.Ask(0, func(d Decision) { then <- d })
		select {
		case d := <-then:
			return d
		case <-time.After(20 * time.Second):
			t.Fatal("no decision")
			return Decision{}
		}
	}
	_, yes := w.gate("yes", About{})
	if yes.Asked(time.Now()) {
		t.Error("asked before it was")
	}
	if d := ask(yes); !d.Start || !yes.Asked(time.Now().Add(time.Hour)) {
		t.Errorf("yes: %+v", d)
	}
	asked := w.count[CountedYes].Load()
	if d := yes.MayStart(t.Context()); !d.Start || w.count[CountedYes].Load() != asked || yes.Asked(time.Now()) {
		t.Errorf("the answer counts, once: %+v", d)
	}
	yes.checked = time.Now().Add(-300 * time.Millisecond) // the timeout, which is as long as a yes counts
	if d := yes.StillWanted(t.Context()); !d.Start || w.count[CountedYes].Load() != asked+1 {
		t.Errorf("its yes was a while ago: %+v", d)
	}
	asked++
	ask(yes)
	yes.heard.at = time.Now().Add(-300 * time.Millisecond) // the timeout
	if d := yes.MayStart(t.Context()); !d.Start || w.count[CountedYes].Load() != asked+2 {
		t.Errorf("an old yes is asked for again: %+v", d)
	}
	_, no := w.gate("no", About{})
	if d := ask(no); d.End == nil || no.Ended() != d.End {
		t.Errorf("no: %+v", d)
	}
	_, mute := w.gate("mute", About{})
	if d := ask(mute); !d.Start || !mute.Asked(time.Now()) || mute.Asked(time.Now().Add(HeardLately)) {
		t.Errorf("no answer: %+v", d)
	}
	if d := ask(mute); !d.Start || !mute.Asked(time.Now().Add(time.Hour)) {
		t.Errorf("no answer for the second time: %+v", d)
	}
	if d := mute.MayStart(t.Context()); !d.Start {
		t.Errorf("no answer: %+v", d)
	}
	silent := w.count[CountedUnknown].Load()
	mute.checked = time.Now().Add(-300 * time.Millisecond)
	if d := mute.StillWanted(t.Context()); !d.Start || w.count[CountedUnknown].Load() != silent {
		t.Errorf("who does not answer is asked again only after a second: %+v", d)
	}
	_, gone := w.gate("gone", About{})
	if d := ask(gone); d.End == nil || !errors.Is(d.End.Err, ErrAbsent) {
		t.Errorf("nobody there: %+v", d)
	}
	gates, late := w.gate("yes", About{})
	gates.Close()
	if d := ask(late); !d.Start {
		t.Errorf("when nobody is asked any more: %+v", d)
	}
}

// There is no room: the message stays away for longer each time, within bounds.
func TestGate_crowded(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 0, Rules{Timeout: time.Second})
	_, g := w.gate("yes", About{})
	for returns, least := range map[int]time.Duration{0: time.Second, 3: 8 * time.Second, 100: crowdedMax} {
		g.Ask(returns, func(d Decision) {
			if d.Start || d.End != nil || d.Err != errCrowded || d.Again < least || d.Again > 2*least {
				t.Errorf("given back %d times: %+v", returns, d)
			}
		})
	}
}

// After its deadline a message never starts, without a question; a replay always does.
func TestGate_deadlineAndReplay(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 100, Rules{Timeout: time.Minute})
	for name, decide := range map[string]func(*Gate) Decision{
		"MayStart":    func(g *Gate) Decision { return g.MayStart(t.Context()) },
		"StillWanted": func(g *Gate) Decision { return g.StillWanted(t.Context()) },
		"Ask":         func(g *Gate) (d Decision) { g.Ask(0, func(is Decision) { d = is }); return d },
	} {
		_, g := w.gate("mute", About{})
		g.Deadline = time.Now()
		if d := decide(g); d.End == nil || !d.End.Expired() || g.Ended() != d.End {
			t.Errorf("%s: %+v", name, d)
		}
	}
	_, g := w.gate("no", About{Replay: true})
	g.Deadline = time.Now()
	if d := g.MayStart(t.Context()); !d.Start || g.IsOver(time.Now()) || g.AsksFirst() {
		t.Errorf("a replay: %+v", d)
	}
	if ctx, stop := g.Watch(t.Context()); ctx != t.Context() {
		t.Error("a replay is watched")
	} else {
		stop()
	}
	_, g = w.gate("mute", About{})
	if g.Expire(); g.Ended() == nil {
		t.Error("it may start after Expire")
	}
}

// A handler is told when its caller does not want the message any more, and not while the caller says nothing.
func TestGate_Watch(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 100, Rules{Timeout: 20 * time.Millisecond, Every: 10 * time.Millisecond})
	for who, want := range map[string]error{"no": ErrForgotten, "gone": ErrAbsent} {
		_, g := w.gate(who, About{})
		ctx, stop := g.Watch(t.Context())
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the handler is not told", who)
		}
		stop()
		if context.Cause(ctx) != ErrForgotten {
			t.Errorf("%s: %v", who, context.Cause(ctx))
		}
		if d := g.Forgotten(); d.End == nil || !errors.Is(d.End.Err, want) || g.Ended() != d.End {
			t.Errorf("%s: %+v", who, d.End)
		}
	}
	for _, who := range []string{"yes", "mute"} {
		_, g := w.gate(who, About{})
		ctx, stop := g.Watch(t.Context())
		before := w.asked.Load()
		w.eventually("it is asked a few times", func(map[string]Left) bool { return w.asked.Load() >= before+3 })
		if ctx.Err() != nil {
			t.Errorf("%s: %v", who, context.Cause(ctx))
		}
		stop()
		if ctx.Err() == nil {
			t.Errorf("%s: its context goes on", who)
		}
	}
	if w.count[CountedYes].Load() > 0 {
		t.Error("questions of a watch are counted") // they are not among those that stand before an attempt
	}
}
