package health

import (
	"log/slog"
	"strings"
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
		l.Came(slog.New(slog.DiscardHandler), most, at)
		at = at.Add(time.Second)
	}
	at = at.Add(-time.Second)
	if l.Reason(most, at) == nil {
		t.Error("two minutes of late messages are not said")
	}
	if l.Reason(most, at.Add(2*most)) != nil {
		t.Error("it is said long after the last one")
	}
	l.Came(slog.New(slog.DiscardHandler), most, at.Add(2*most))
	if l.Reason(most, at.Add(2*most)) != nil {
		t.Error("one late message after a pause belongs to what was before")
	}
	for range 121 {
		at = at.Add(time.Second)
		l.Came(slog.New(slog.DiscardHandler), most, at)
	}
	if l.End(); l.Reason(most, at) != nil {
		t.Error("one in time does not end it")
	}
}

// Everything arrived after its AckWait, nothing was started, and relay was ready.
func TestLate_regressionAllArriveAfterTheirAckWait(t *testing.T) {
	var log strings.Builder
	to := slog.New(slog.NewTextHandler(&log, nil))
	const stalled = 2 * time.Minute
	var l Late
	began := time.Now().Add(-time.Hour)
	now := began
	for ; now.Sub(began) < stalled; now = now.Add(time.Second) {
		l.Came(to, stalled, now)
		if err := l.Reason(stalled, now); err != nil {
			t.Fatalf("after %v: %v", now.Sub(began), err)
		}
	}
	l.Came(to, stalled, now)
	if l.Reason(stalled, now) == nil {
		t.Error("nothing is said of it")
	}
	if l.Reason(stalled, now.Add(2*stalled)) != nil {
		t.Error("long after the last one it is still said")
	}
	if lines := strings.Count(log.String(), "arrived after its ack wait"); lines != 3 {
		t.Errorf("%d lines for 121 messages, want 3", lines)
	}
	l.End()
	if l.Reason(stalled, now) != nil {
		t.Error("one arrived in time, and it is still said")
	}
	l.Came(to, stalled, now)
	if l.Reason(stalled, now) != nil {
		t.Error("one late message is a trouble at once")
	}
}
