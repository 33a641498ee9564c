package supervise

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
