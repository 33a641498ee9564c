package consumer

import (
	"github.com/relaymq/relay/consumer/internal/engine"
	"github.com/relaymq/relay/consumer/internal/route"
)

var (
	// ErrForcedDrain says that Run ended before all handlers had: their messages are delivered again.
	ErrForcedDrain = engine.ErrForcedDrain
	// ErrEscalated says that a key gave up and its route's on_give_up is exit.
	ErrEscalated = route.ErrEscalated
)

// SetupError says why a route, or all of relay, cannot work. Every fault is found before the first message is pulled. Its fields:
//
//	Route string // empty: not about a single route
//	Err   error
type SetupError = route.SetupError
