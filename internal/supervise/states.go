package supervise

import (
	"fmt"
	"slices"
	"time"
)

// State of a key, and of a route.
type State uint8

// The states there are.
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

// keyState is what a key is in. Each state is a type with what belongs to it and to no other: see flowing.go, waiting.go,
// probing.go and suspended.go. What leads from one to another is in stops.go.
type keyState interface {
	is() State
	// until is when it is over by itself, or lets more happen; the zero time is never.
	until() time.Time
	// attend does what time brings.
	attend(t *turn, k *key)
	// accepts tells whether a message that arrives now may start, as far as its key is concerned.
	accepts(t *turn, k *key, m *Message) bool
	// choose is the message of k that may start now, from the line whose turn it is; nil when none may.
	choose(t *turn, k *key, from line) *Message
	// candidate is the message of k with such a past that may be a probe of the route; nil when none may.
	candidate(t *turn, k *key, with past) *Message
	// started notes a run that begins.
	started(k *key, r *run)
	// born notes that k has a fresh child.
	born(t *turn, k *key)
	// answered is told that a handler of k's child worked.
	answered(t *turn, k *key)
	// failed is told that a handler of k's child returned an error.
	failed(t *turn, k *key, err error)
}

// still is what all states have in common in which nothing starts.
type still struct{}

func (still) until() time.Time                     { return time.Time{} }
func (still) attend(*turn, *key)                   {}
func (still) accepts(*turn, *key, *Message) bool   { return false }
func (still) choose(*turn, *key, line) *Message    { return nil }
func (still) candidate(*turn, *key, past) *Message { return nil }
func (still) started(*key, *run)                   {}
func (still) born(*turn, *key)                     {}
func (still) answered(*turn, *key)                 {}
func (still) failed(*turn, *key, error)            {}

// move is the only way of a key from one state to another. Delay is how long the new one lasts, if that is known.
func (k *key) move(t *moment, to keyState, why string, delay time.Duration) {
	from := k.state.is()
	if !mayMove(from, to.is()) {
		panic(fmt.Sprintf("supervisor: key %q: no move from %v to %v", k.name, from, to.is()))
	}
	t.tell(Event{
		Key: k.name, From: from, To: to.is(), Why: why, Delay: delay, Restarts: k.restarts, Child: k.childName(), Err: k.lastErr,
	})
	k.outage.moved(from, to.is(), why, t.now)
	k.state = to
}
