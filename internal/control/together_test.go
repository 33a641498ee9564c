package control

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A route with partitions is in the worst of the states of its parts, and has what all of them have, each once: keys that were not listed were counted
// twice.
func TestTogether_regressionEachIsCountedOnce(t *testing.T) {
	t.Parallel()
	at := time.Now()
	stored, until := 7, at.Add(time.Minute)
	part := func(i int, state string) RouteStatus {
		rt := RouteStatus{
			Name: "billing", State: state, Why: state, Running: 1, Acked: 10, Stored: &stored, WaitingMore: 3, Keys: map[string]int{"waiting": 2},
			Backlog: &Backlog{Stream: 5, Outstanding: 1}, Until: &until,
		}
		for k := range 4 {
			rt.Waiting = append(rt.Waiting, KeyStatus{Key: fmt.Sprint(i, k), Since: at.Add(time.Duration(10*k+i) * time.Second)})
		}
		return rt
	}
	s := Together([]RouteStatus{part(0, StateFlowing), part(1, StateSuspended), part(2, StateStandby)}, 5)
	if s.State != StateSuspended || s.Why != StateSuspended {
		t.Errorf("it is %s, because %s", s.State, s.Why)
	}
	if s.Running != 3 || s.Acked != 30 || s.Keys["waiting"] != 6 || s.Backlog.Stream != 15 || s.Backlog.Outstanding != 3 {
		t.Errorf("%d run, %d were acked, %d keys wait, backlog %+v", s.Running, s.Acked, s.Keys["waiting"], s.Backlog)
	}
	if *s.Stored != 7 {
		t.Errorf("%d dead letters of the route are stored, which all parts share", *s.Stored)
	}
	if len(s.Waiting) != 5 || s.WaitingMore != 3*3+12-5 {
		t.Errorf("%d keys are listed, and %d more", len(s.Waiting), s.WaitingMore)
	}
	if !slices.IsSortedFunc(s.Waiting, func(a, b KeyStatus) int { return a.Since.Compare(b.Since) }) {
		t.Errorf("the longest wait is not the first: %+v", s.Waiting)
	}
	for _, state := range States {
		if !slices.Contains(severity, state) {
			t.Errorf("nobody knows how bad %s is", state)
		}
	}
}
