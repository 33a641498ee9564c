package supervisor

import "time"

// Event is a change of state of a key, or of the route when Key is empty and Route is true.
type Event struct {
	Route    bool
	Key      string
	From, To State
	// Why in a few words: "panic: …", "5 failures in a row: …", "probe succeeded".
	Why string
	// Delay until the next probe, of a move to Waiting.
	Delay time.Duration
	// Restarts since the last reset.
	Restarts int
	// Child is the one that ended or began: child-1, child-2, …
	Child string
	Err   error
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

// unlock releases the group's lock and does what was gathered.
func (g *Group) unlock(fx *effects) {
	g.mu.Unlock()
	if fx.settles {
		fx.first.work.Settle(fx.first.outcome)
	}
	for i := range fx.rest {
		fx.rest[i].work.Settle(fx.rest[i].outcome)
	}
	for _, e := range fx.events {
		g.opts.Event(e)
	}
	for _, call := range fx.calls {
		call()
	}
}
