package supervise

import (
	"testing"
	"time"
)

// reopened gives slots of a route that came to flow again, with a ramp that begins at two.
func reopened(t *testing.T, all int) *slots {
	m := &moment{opts: &Options{}, now: time.Now(), alarm: alarm{timer: time.NewTimer(time.Hour)}}
	t.Cleanup(m.alarm.stop)
	s := newSlots(all, time.Second, m)
	s.closed = true
	s.running.n = 1 // it began before
	s.reopen(2)
	s.running.n = 0
	return &s
}

func TestRamp_doublesWithEachSuccessUpToAllSlots(t *testing.T) {
	s := reopened(t, 16)
	s.ended(s.epoch - 1) // what began before has returned
	for i, want := range []int{2, 4, 8, 16, 16} {
		if got := s.open(); got != want {
			t.Errorf("after %d successes %d slots are open, want %d", i, got, want)
		}
		s.rampUp()
	}
	if s.most != 0 {
		t.Errorf("the ramp is still at %d, with all slots open", s.most)
	}
}

func TestRamp_goesOnWithTimeWhenNothingSucceeds(t *testing.T) {
	s := reopened(t, 16)
	s.now = s.now.Add(rampEvery - 1)
	if s.attendRamp(); s.most != 2 {
		t.Errorf("before its time the ramp is at %d, want 2", s.most)
	}
	s.now = s.now.Add(1)
	if s.attendRamp(); s.most != 4 {
		t.Errorf("at its time the ramp is at %d, want 4", s.most)
	}
}

func TestRamp_whatBeganBeforeRunsBesideIt(t *testing.T) {
	s := reopened(t, 16)
	if got := s.open(); got != 3 {
		t.Errorf("%d slots are open, want two and the one that is taken since before", got)
	}
	s.ended(s.epoch)
	if got := s.open(); got != 3 {
		t.Errorf("the end of a run of this epoch leaves %d slots open, want 3", got)
	}
	for range 2 {
		s.ended(s.epoch - 1)
	}
	if got := s.open(); got != 2 {
		t.Errorf("without runs of before %d slots are open, want 2", got)
	}
}

func TestRamp_bindsNothingWhileTheRouteDoesNotFlow(t *testing.T) {
	s := reopened(t, 16)
	s.closed = true
	if got := s.open(); got != 16 {
		t.Errorf("%d slots are open to questions, want all 16", got)
	}
	k := &key{name: "a"}
	k.state = &k.flow
	k.fresh.n = 1
	if s.queue(k); s.ready[fresh].len() != 0 {
		t.Error("a key got a turn while the route does not flow")
	}
	s.closed = false
	if s.queue(k); s.ready[fresh].len() != 1 {
		t.Error("a key with a message got no turn while the route flows")
	}
}
