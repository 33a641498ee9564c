package consumer

import (
	"log/slog"
	"testing"
	"time"
)

// Everything arrived after its AckWait, nothing was started, and relay was ready.
func TestLate_regressionAllArriveAfterTheirAckWait(t *testing.T) {
	var log syncBuffer
	const stalled = 2 * time.Minute
	s := &source{binding: &binding{relay: &Relay{}, log: slog.New(slog.NewTextHandler(&log, nil))}, count: new(sourceCounters)}
	s.relay.cfg.Stalled = stalled
	began := time.Now().Add(-time.Hour)
	now := began
	for ; now.Sub(began) < stalled; now = now.Add(time.Second) {
		s.cameLate(now)
		if err := s.late.Reason(stalled, now); err != nil {
			t.Fatalf("after %v: %v", now.Sub(began), err)
		}
	}
	s.cameLate(now)
	if s.late.Reason(stalled, now) == nil {
		t.Error("nothing is said of it")
	}
	if s.late.Reason(stalled, now.Add(2*stalled)) != nil {
		t.Error("long after the last one it is still said")
	}
	if lines, n := log.count("arrived after its ack wait"), s.count.Late.Load(); lines != 3 || n != 121 {
		t.Errorf("%d lines for %d messages, want 3 for 121", lines, n)
	}
	s.late.End()
	if s.late.Reason(stalled, now) != nil {
		t.Error("one arrived in time, and it is still said")
	}
	s.cameLate(now)
	if s.late.Reason(stalled, now) != nil {
		t.Error("one late message is a trouble at once")
	}
}
