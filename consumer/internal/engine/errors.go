package engine

import (
	"errors"
	"fmt"
)

var (
	// ErrForcedDrain says that Run ended before all handlers had: their messages are delivered again.
	ErrForcedDrain = errors.New("handlers were interrupted")
	// ErrEscalated says that a key gave up and its route's on_give_up is exit.
	ErrEscalated = errors.New("a key gave up")
)

// SetupError says why a route, or all of relay, cannot work. Every fault is found before the first message is pulled.
type SetupError struct {
	Route string // empty: not about a single route
	Err   error
}

func (e *SetupError) Error() string {
	if e.Route == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("route %s: %v", e.Route, e.Err)
}

func (e *SetupError) Unwrap() error { return e.Err }
