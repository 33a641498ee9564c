package engine

import (
	"testing"
	"time"
)

func TestPhases(t *testing.T) {
	t.Parallel()
	p := newPhases(time.Minute)
	if !p.since().IsZero() || p.Serving.Load() || p.drainTime() != time.Minute {
		t.Errorf("since %v, drain %v", p.since(), p.drainTime())
	}
	now := time.Now()
	if !p.begin(now) || p.begin(now.Add(time.Hour)) || !p.since().Equal(now) {
		t.Errorf("it began at %v", p.since())
	}
	if p.setDrain(time.Second); p.drainTime() != time.Second {
		t.Errorf("drain %v", p.drainTime())
	}
}
