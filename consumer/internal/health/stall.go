package health

import (
	"fmt"
	"sync"
	"time"
)

// Starts is what a look at a route saw.
type Starts struct {
	Begun   int64  // of the last start
	Running bool   // something runs
	Paused  bool   // by an operator
	Limited bool   // by a limit; the status says by which
	Here    int    // messages that wait in memory
	Stream  uint64 // messages that the durable has not delivered
	// Flows tells whether all messages of the route may start as they come. Its state has a why and a since, or neither.
	Flows   bool
	State   string
	Why     string
	Since   time.Time
	Waiting int // messages that could start if it flowed
}

// Stall tells whether a route starts nothing, or only what fails, although messages wait that no operator holds back. Parked messages wait for a
// time of their own, as do those that were given back. Its methods are for all goroutines.
type Stall struct {
	mu    sync.Mutex
	begun int64     // of the last start that was seen
	since time.Time // it has started no message, or only what fails, and messages wait
	what  string    // which of the two
	why   string
}

// Look notes what was seen.
func (s *Stall) Look(now time.Time, saw Starts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := saw.Begun != s.begun
	s.begun = saw.Begun
	switch {
	case !saw.Flows && !saw.Paused && saw.Waiting > 0:
		s.since, s.what = saw.Since, "it has started only messages that fail"
		s.why = fmt.Sprintf("%d messages wait; the route is %s: %s", saw.Waiting, saw.State, saw.Why)
		return
	case began, saw.Running, saw.Paused, saw.Limited, saw.Here == 0 && saw.Stream == 0:
		s.since, s.what, s.why = time.Time{}, "", ""
		return
	}
	if s.since.IsZero() {
		s.since = now
	}
	s.what = "it has started no message"
	s.why = fmt.Sprintf("%d messages wait here and %d in the stream", saw.Here, saw.Stream)
	if saw.Why != "" {
		s.why += fmt.Sprintf("; the route is %s: %s", saw.State, saw.Why)
	}
}

// Lasting is since when and why it has lasted for that long; empty when it has not.
func (s *Stall) Lasting(most time.Duration, now time.Time) (since time.Time, why string) {
	since, _, why = s.lasting(most, now)
	return since, why
}

func (s *Stall) lasting(most time.Duration, now time.Time) (since time.Time, what, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() || now.Sub(s.since) < most {
		return time.Time{}, "", ""
	}
	return s.since, s.what, s.why
}

// Err says what has lasted for that long; nil when nothing has.
func (s *Stall) Err(most time.Duration, now time.Time) error {
	since, what, why := s.lasting(most, now)
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s since %s: %s", what, since.UTC().Format(time.RFC3339), why)
}
