package supervisor

import (
	"strings"
	"testing"
	"time"
)

func TestConfig_validateRejects(t *testing.T) {
	for want, c := range map[string]Config{
		`retry_after: unknown value "host"`:            {RetryAfter: "host"},
		`trigger: unknown value "panic"`:               {Trigger: "panic"},
		`forward: unknown value "keep"`:                {Forward: "keep"},
		`on_give_up: unknown value "stop"`:             {OnGiveUp: "stop"},
		`reset: unknown value "sometimes"`:             {Reset: "sometimes"},
		"reset: must be above 0 (got -1s)":             {Reset: "-1s"},
		"reset: must be above 0 (got 0s)":              {Reset: "0s"},
		"trip_after: must be at least 0":               {TripAfter: new(-1)},
		"route_trip.of: must be at least 0":            {RouteTrip: RouteTrip{Of: new(-1)}},
		"max_restarts: must be at least 0":             {MaxRestarts: -1},
		"max_stuck: must be at least 1":                {MaxStuck: -1},
		"max_children: must be at least 1":             {MaxChildren: -1},
		"drain_grace: must not be negative":            {DrainGrace: new(-time.Second)},
		"window: must be above 0":                      {Window: -1},
		"child_idle: must be above 0":                  {ChildIdle: -1},
		"restart.min: must be above 0":                 {Restart: Backoff{Min: -1}},
		`restart.policy: unknown policy "quadratic"`:   {Restart: Backoff{Policy: "quadratic"}},
		"restart.delays: the schedule policy needs at": {Restart: Backoff{Policy: Schedule}},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	err := Config{Trigger: "x", MaxStuck: -1, Restart: Backoff{Min: -1, Jitter: new(2.0)}}.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("not every fault at once: %v", err)
	}
}

func TestConfig_everyKnownValueIsAccepted(t *testing.T) {
	accept := func(c Config) {
		t.Helper()
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
	accept(Config{})
	accept(Config{TripAfter: new(0), RouteTrip: RouteTrip{Of: new(0)}, DrainGrace: new(time.Duration(0))})
	for _, v := range []Scope{ScopeRoute, scopeKey} {
		accept(Config{RetryAfter: v})
	}
	for _, v := range []Trigger{triggerAny, TriggerFailure, TriggerStop} {
		accept(Config{Trigger: v})
	}
	for _, v := range []Reset{resetSuccess, ResetMinStable, ResetNever, "90s"} {
		accept(Config{Reset: v})
	}
	for _, v := range []Forward{forwardStash, ForwardGiveBack, ForwardDrop} {
		accept(Config{Forward: v})
	}
	for _, v := range []GiveUp{giveUpSuspend, GiveUpDeadLetter, GiveUpExit} {
		accept(Config{OnGiveUp: v})
	}
}

func TestConfig_defaults(t *testing.T) {
	c := Config{}.WithDefaults()
	if *c.TripAfter != 5 || *c.RouteTrip.Of != 50 || c.RouteTrip.Share != 0.9 || c.RouteTrip.Keys != 3 || c.RetryAfter != scopeKey || c.Trigger != triggerAny ||
		c.Reset != resetSuccess || c.Forward != forwardStash || *c.DrainGrace != 50*time.Millisecond ||
		!*c.ForwardDuringGrace || c.MaxRestarts != 0 || c.Window != time.Minute || c.OnGiveUp != giveUpSuspend ||
		c.MaxStuck != 8 || c.ChildIdle != 10*time.Second || c.MaxChildren != 1000 ||
		c.Restart.Min != 200*time.Millisecond || c.Restart.Max != time.Minute || *c.Restart.Jitter != 0.2 {
		t.Errorf("defaults %+v", c)
	}
	if c := (Config{TripAfter: new(0), ForwardDuringGrace: new(false)}).WithDefaults(); *c.TripAfter != 0 || *c.ForwardDuringGrace {
		t.Errorf("what means never became a default: %+v", c)
	}
}
