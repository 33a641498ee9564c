package route

import (
	"errors"
	"fmt"
)

// ErrEscalated says that a key gave up and its route's on_give_up is exit.
var ErrEscalated = errors.New("a key gave up")

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
