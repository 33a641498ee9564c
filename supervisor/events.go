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
	settlements []settlement
	events      []Event
	calls       []func()
	one         [1]settlement // most often there is one, and it needs no allocation
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
	if fx.settlements == nil {
		fx.settlements = fx.one[:0]
	}
	fx.settlements = append(fx.settlements, settlement{m.Work, o})
}

// unlock releases the group's lock and does what was gathered.
func (g *Group) unlock(fx *effects) {
	g.mu.Unlock()
	for i := range fx.settlements {
		fx.settlements[i].work.Settle(fx.settlements[i].outcome)
	}
	for _, e := range fx.events {
		g.opts.Event(e)
	}
	for _, call := range fx.calls {
		call()
	}
}
