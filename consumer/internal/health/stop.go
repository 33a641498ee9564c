package health

import (
	"sync"
	"time"
)

// sayStop is how often the log names another reason of a route that is stopped: it may be another one for each message.
const sayStop = time.Minute

// Stop is why a route is stopped: no message is to blame, and none starts but to find out whether it works again. The zero value is that of a route
// that is not. Its methods are for all goroutines.
type Stop struct {
	mu    sync.Mutex
	err   error
	since time.Time
	said  time.Time
}

// Noted is what a note of a Stop has changed, and what is to be said of it.
type Noted int

// What a note may change.
const (
	Nothing     Noted = iota // that is to be said
	Began                    // the route is stopped
	OtherReason              // it still is, and the log has not said why for a minute
	Over                     // it is not any more
)

// Note notes why the route is stopped; nil says that it is not any more.
func (s *Stop) Note(err error, now time.Time) Noted {
	s.mu.Lock()
	defer s.mu.Unlock()
	begins := s.err == nil
	s.err = err
	if begins || err == nil {
		s.since = now
	}
	say := begins || err == nil || now.Sub(s.said) >= sayStop
	if say {
		s.said = now
	}
	switch {
	case err == nil:
		return Over
	case begins:
		return Began
	case say:
		return OtherReason
	}
	return Nothing
}

// Now is why the route is stopped, and since when; nil when it is not.
func (s *Stop) Now() (since time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.err
}
