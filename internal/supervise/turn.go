package supervise

import (
	"time"

	"github.com/relaymq/relay/supervisor"
)

// turn is the group while its lock is held. Only lock gives it, so whoever has a turn may look at the group's state and
// change it. A turn has one time, that of its beginning, and gathers what has to be told to others; unlock does that after
// the lock is released, so that nobody else's code ever runs under it.
//
// A turn ends with unlock and must not be kept: not in a struct, not in a function that is called later.
type turn struct {
	state
	moment
}

// moment is what a turn gives to its parts: its time, the settings, what has to be told to others, and what is to be done later.
type moment struct {
	now   time.Time
	group *Group
	opts  *Options
	cfg   *supervisor.Config
	effects
	brakes
	alarm  alarm
	counts Counts
}

// brakes are what keeps the whole group from starting anything, whatever waits.
type brakes struct {
	paused  bool // by an operator
	held    bool // for messages that run alone: nothing else starts
	freed   bool // while one of these is chosen
	closing bool
}

func (b *brakes) standsStill() bool { return b.closing || b.paused || b.held }

// lock begins a turn. The time is read under the lock: read before it, the time might be earlier than that of the one who had
// the lock meanwhile and queued a key because its grace was over. The key would be taken from the queue, and not start.
func (g *Group) lock() *turn {
	g.mu.Lock()
	g.turn.now = time.Now()
	return &g.turn
}

// unlock ends the turn, and does what was gathered.
func (t *turn) unlock() {
	g := t.group
	fx := t.effects
	if !fx.none() {
		t.effects = effects{}
	}
	g.mu.Unlock()
	fx.do(g.opts.Event)
}

// effects is what is to be done once the lock is released.
type effects struct {
	settles bool
	first   settlement // most often there is one, and it needs no allocation
	rest    []settlement
	parting *Outcome // the last settlement, if it waits
	events  []Event
	calls   []func()
}

type settlement struct {
	work    Work
	outcome Outcome
}

func (fx *effects) none() bool {
	return !fx.settles && fx.parting == nil && fx.events == nil && fx.calls == nil
}

// settle ends a message once the lock is released, or once its last failure is stored (see remember.go).
func (fx *effects) settle(m *Message, o Outcome) {
	if o.Attempts == 0 {
		o.Attempts = m.Attempts
	}
	if o.FirstFailure.IsZero() {
		o.FirstFailure = m.FirstFailure
	}
	if m.storing {
		fx.parting = new(o)
		m.parting = fx.parting
		return
	}
	fx.parting = nil
	s := settlement{m.Work, o}
	if !fx.settles {
		fx.settles, fx.first = true, s
		return
	}
	fx.rest = append(fx.rest, s)
}

// last is the outcome that was settled last.
func (fx *effects) last() *Outcome {
	if fx.parting != nil {
		return fx.parting
	}
	if n := len(fx.rest); n > 0 {
		return &fx.rest[n-1].outcome
	}
	return &fx.first.outcome
}

// call has f called once the lock is released. It must not block.
func (fx *effects) call(f func()) { fx.calls = append(fx.calls, f) }

// tell has the owner told of a change of state.
func (fx *effects) tell(e Event) { fx.events = append(fx.events, e) }

// do is for a turn that has ended: the settlements first, then the events, then the calls, each in their order.
func (fx *effects) do(event func(Event)) {
	if fx.settles {
		fx.first.work.Settle(fx.first.outcome)
	}
	for i := range fx.rest {
		fx.rest[i].work.Settle(fx.rest[i].outcome)
	}
	for _, e := range fx.events {
		event(e)
	}
	for _, call := range fx.calls {
		call()
	}
}
