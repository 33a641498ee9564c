package route

import (
	"testing"
	"time"
)

func TestPhases(t *testing.T) {
	t.Parallel()
	p := NewPhases(time.Minute)
	if !p.Since().IsZero() || p.Serving.Load() || p.DrainTime() != time.Minute {
		t.Errorf("since %v, drain %v", p.Since(), p.DrainTime())
	}
	now := time.Now()
	if !p.Begin(now) || p.Begin(now.Add(time.Hour)) || !p.Since().Equal(now) {
		t.Errorf("it began at %v", p.Since())
	}
	if p.SetDrain(time.Second); p.DrainTime() != time.Second {
		t.Errorf("drain %v", p.DrainTime())
	}
}
