package health

import (
	"strings"
	"testing"
	"time"
)

// A route stalls when it starts nothing, or only what fails, although messages wait that nobody holds back.
func TestStall(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_000_000, 0)
	const most = time.Minute
	idle := Starts{Begun: 1, Flows: true, State: "flowing"}
	waits := Starts{Begun: 1, Flows: true, State: "flowing", Here: 2, Stream: 5}
	for name, c := range map[string]struct {
		saw  Starts
		want string
	}{
		"nothing waits":           {idle, ""},
		"messages wait":           {waits, "it has started no message since 1970-01-12T13:47:40Z: 2 messages wait here and 5 in the stream"},
		"in the stream only":      {Starts{Begun: 1, Flows: true, Stream: 1}, "0 messages wait here and 1 in the stream"},
		"something runs":          {Starts{Begun: 1, Flows: true, Stream: 1, Running: true}, ""},
		"an operator paused it":   {Starts{Begun: 1, Flows: true, Stream: 1, Paused: true}, ""},
		"a limit lets none start": {Starts{Begun: 1, Flows: true, Stream: 1, Limited: true}, ""},
		"paused and in doubt":     {Starts{Begun: 1, State: "waiting", Waiting: 3, Paused: true, Why: "down", Since: began.Add(-time.Hour)}, ""},
		"in doubt": {Starts{Begun: 1, State: "probing", Running: true, Waiting: 3, Why: "down", Since: began.Add(-time.Hour)},
			"it has started only messages that fail since 1970-01-12T12:46:40Z: 3 messages wait; the route is probing: down"},
		"in doubt, and none can start": {Starts{Begun: 1, State: "suspended", Here: 4, Why: "all dead", Since: began.Add(-time.Hour)},
			"4 messages wait here and 0 in the stream; the route is suspended: all dead"},
	} {
		s := new(Stall)
		s.Look(began, idle)
		s.Look(began.Add(most), c.saw)
		s.Look(began.Add(2*most-1), c.saw)
		if err := s.Err(most, began.Add(2*most-1)); err != nil && c.saw.Since.IsZero() {
			t.Errorf("%s, too soon: %v", name, err)
		}
		err := s.Err(most, began.Add(2*most))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if since, why := s.Lasting(most, began.Add(2*most)); (why == "") != (c.want == "") || since.IsZero() != (c.want == "") {
			t.Errorf("%s: %v, %q", name, since, why)
		}
		begun := c.saw
		begun.Begun, begun.Flows = 2, true
		s.Look(began.Add(3*most), begun)
		if err := s.Err(0, began.Add(4*most)); err != nil {
			t.Errorf("%s, after a start: %v", name, err)
		}
	}
}
