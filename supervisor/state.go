package supervisor

import (
	"fmt"
	"slices"
)

// State of a key, and of a route.
type State uint8

const (
	Flowing   State = iota // messages start as they come
	Waiting                // nothing starts until the backoff is over
	Probing                // a fresh child has at most one message
	Suspended              // given up: everything is given back until an operator resumes it
	Stopped                // the child stopped cleanly, and that was that
)

var stateNames = [...]string{"flowing", "waiting", "probing", "suspended", "stopped"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MarshalText writes the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// States are all of them, in order.
func States() []State { return []State{Flowing, Waiting, Probing, Suspended, Stopped} }

var moves = map[State][]State{
	Flowing:   {Waiting, Suspended, Stopped},
	Waiting:   {Probing, Waiting, Suspended}, // Waiting again: for longer
	Probing:   {Flowing, Waiting, Suspended, Stopped},
	Suspended: {Probing}, // by an operator only
	Stopped:   {},
}

func mayMove(from, to State) bool { return slices.Contains(moves[from], to) }
