package engine

import "errors"

// ErrForcedDrain says that Run ended before all handlers had: their messages are delivered again.
var ErrForcedDrain = errors.New("handlers were interrupted")
