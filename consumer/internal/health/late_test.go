package health

import (
	"testing"
	"time"
)

// All messages have to come late for a while before that is said; one in time ends it, and so does a pause.
func TestLate_saysWhatLasts(t *testing.T) {
	t.Parallel()
	var l Late
	const most = 2 * time.Minute
	at := time.Now()
	for range 121 {
		l.Came(most, at)
		at = at.Add(time.Second)
	}
	at = at.Add(-time.Second)
	if l.Reason(most, at) == nil {
		t.Error("two minutes of late messages are not said")
	}
	if l.Reason(most, at.Add(2*most)) != nil {
		t.Error("it is said long after the last one")
	}
	l.Came(most, at.Add(2*most))
	if l.Reason(most, at.Add(2*most)) != nil {
		t.Error("one late message after a pause belongs to what was before")
	}
	for range 121 {
		at = at.Add(time.Second)
		l.Came(most, at)
	}
	if l.End(); l.Reason(most, at) != nil {
		t.Error("one in time does not end it")
	}
}
