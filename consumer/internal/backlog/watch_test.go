package backlog

import (
	"context"
	"testing"
)

// All are looked at, and again as long as it runs.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, at := w.publish("jobs.a", nil)
	w.publish("jobs.b", nil)
	var counts [2]Count
	var oldest Oldest
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rounds := 0
	Watch{
		Server: w.Server,
		Parked: func() []Parked {
			return []Parked{{Count: &counts[0], Stream: "JOBS", Filter: "jobs.>"}, {Count: &counts[1], Stream: "JOBS", Filter: "jobs.b"}}
		},
		Waiting: func() []Waiting {
			if rounds++; rounds > 1 {
				cancel()
				return nil
			}
			return []Waiting{{Oldest: &oldest, Look: &Look{Pending: 2}, Stream: "JOBS", Patterns: []string{"jobs.>"}}}
		},
	}.Run(ctx)
	found, known := oldest.Last()
	if counts[0].Last() == nil || counts[0].Last().N != 2 || counts[1].Last() == nil || counts[1].Last().N != 1 || !known || !found.Equal(at) || rounds != 2 {
		t.Errorf("counted %+v and %+v, the oldest is of %v, %v; %d rounds", counts[0].Last(), counts[1].Last(), found, known, rounds)
	}
}
