package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The words of Config are types of their own, so that a program cannot put one where another belongs. Each is spelled as in the
// configuration file.
type (
	// Scope is what a Retry-After pauses.
	Scope string
	// Trigger is which stops make a fresh child.
	Trigger string
	// Forward is what happens to the messages of a key that waits.
	Forward string
	// GiveUp is what happens to a key that gave up.
	GiveUp string
	// Reset is when the restart count starts again from zero: one of the words below, or a duration, see [ResetAfter].
	Reset string
	// Order is whether the messages of a key start in the order of the stream.
	Order string
)

// What a setting of Config may say beside its default, which is the empty word.
const (
	ScopeRoute Scope = "route"

	TriggerFailure Trigger = "failure"
	TriggerStop    Trigger = "stop"

	ForwardGiveBack Forward = "giveback"
	ForwardDrop     Forward = "drop"

	GiveUpDeadLetter GiveUp = "dead_letter"
	GiveUpExit       GiveUp = "exit"

	ResetMinStable Reset = "after_min_stable"
	ResetNever     Reset = "never"

	OrderKey Order = "key"
)

// The defaults, as WithDefaults fills them in.
const (
	scopeKey      Scope   = "key"
	triggerAny    Trigger = "any"
	forwardStash  Forward = "stash"
	giveUpSuspend GiveUp  = "suspend"
	resetSuccess  Reset   = "success"
)

// ResetAfter has the restart count start again once the child has lived for d.
func ResetAfter(d time.Duration) Reset { return Reset(d.String()) }

// Config is how the keys of a route are supervised. The zero value of a field is its default; for the counts whose zero
// means never, a nil pointer is the default.
type Config struct {
	// TripAfter is how many failed completions in a row trip a key: its dependency is down, and its messages wait. They
	// must be of at least two distinct messages unless it is 1. 0 means never. Nil means 5.
	TripAfter *int `koanf:"trip_after"`
	// RouteTrip says when the whole route waits: what all its keys depend on is down.
	RouteTrip RouteTrip `koanf:"route_trip"`
	// DeadTrip says when the route is suspended because so many dead verdicts are not believed.
	DeadTrip DeadTrip `koanf:"dead_trip"`
	// RetryAfter says what a handler's Retry-After pauses: key (default) or route.
	RetryAfter Scope `koanf:"retry_after"`
	// Trigger says which stops make a fresh child: any (default), failure (a clean stop ends the supervisor) or stop (a
	// crash gives the key up at once).
	Trigger Trigger `koanf:"trigger"`
	// Reset is when the restart count starts again from zero: success (default), after_min_stable (the child lived at
	// least restart.min), a duration (the child lived as long as that), or never.
	Reset Reset `koanf:"reset"`
	// Forward is what happens to the messages of a key that waits: stash (default), giveback or drop.
	Forward Forward `koanf:"forward"`
	// DrainGrace is how long a fresh child is left alone before it gets a message. Nil means 50ms.
	DrainGrace *time.Duration `koanf:"drain_grace"`
	// ForwardDuringGrace lets a message that arrives during the grace be the probe. Nil means true.
	ForwardDuringGrace *bool `koanf:"forward_during_grace"`
	// MaxRestarts within Window give the key up. Zero means never.
	MaxRestarts int `koanf:"max_restarts"`
	// Window is how long a restart counts, and how long a key's failures are remembered. Zero means 1m.
	Window time.Duration `koanf:"window"`
	// OnGiveUp is what happens to a key that gave up: suspend (default), dead_letter or exit.
	OnGiveUp GiveUp `koanf:"on_give_up"`
	// MaxStuck is how many handlers may ignore their timeout before the route stops. Zero means 8.
	MaxStuck int `koanf:"max_stuck"`
	// ChildIdle is how long a child of a key without messages lives on. Zero means 10s.
	ChildIdle time.Duration `koanf:"child_idle"`
	// MaxChildren bounds the children of a route whose handler has state. Zero means 1000.
	MaxChildren int `koanf:"max_children"`
	// Restart is the backoff between a stop, or a trip, and the next child: 200ms to 1m by default.
	Restart Backoff `koanf:"restart"`
}

// WithDefaults fills the zero fields.
func (c Config) WithDefaults() Config {
	c.TripAfter = orDefault(c.TripAfter, 5)
	c.RouteTrip.Of = orDefault(c.RouteTrip.Of, 50)
	c.RouteTrip.Share = cmp.Or(c.RouteTrip.Share, 0.9)
	c.RouteTrip.Keys = cmp.Or(c.RouteTrip.Keys, 3)
	c.DeadTrip.Of = orDefault(c.DeadTrip.Of, 50)
	c.DeadTrip.Share = cmp.Or(c.DeadTrip.Share, 0.9)
	c.RetryAfter = cmp.Or(c.RetryAfter, scopeKey)
	c.Trigger = cmp.Or(c.Trigger, triggerAny)
	c.Reset = cmp.Or(c.Reset, resetSuccess)
	c.Forward = cmp.Or(c.Forward, forwardStash)
	c.DrainGrace = orDefault(c.DrainGrace, 50*time.Millisecond)
	c.ForwardDuringGrace = orDefault(c.ForwardDuringGrace, true)
	c.Window = cmp.Or(c.Window, time.Minute)
	c.OnGiveUp = cmp.Or(c.OnGiveUp, giveUpSuspend)
	c.MaxStuck = cmp.Or(c.MaxStuck, 8)
	c.ChildIdle = cmp.Or(c.ChildIdle, 10*time.Second)
	c.MaxChildren = cmp.Or(c.MaxChildren, 1000)
	c.Restart = c.Restart.WithRestartDefaults()
	return c
}

// RouteTrip says which failures trip a route: of the last Of completions at least Share failed, over at least Keys keys,
// and no success came when one was due. Successes count, and of the failures the first of each message and those of
// probes, within Config.Window.
type RouteTrip struct {
	// Share that must have failed, above 0 to 1. Zero means 0.9.
	Share float64 `koanf:"share"`
	// Of is how many completions are looked at, at most 10000. 0 means that the route never trips. Nil means 50.
	Of *int `koanf:"of"`
	// Keys is how many different keys the failures must have. Zero means 3.
	Keys int `koanf:"keys"`
}

// DeadTrip says which verdicts suspend a route: of its last Of answers at least Share were dead, over at least three keys (or all keys
// that had answers in the last minute or two), and no success came when one was due. Then dead verdicts are not believed: messages
// wait, and the route tries a few of them now and then. It flows when one succeeds, or when an operator resumes it.
type DeadTrip struct {
	// Share that must have been dead, above 0 to 1. Zero means 0.9.
	Share float64 `koanf:"share"`
	// Of is how many answers are looked at, at most 10000. It also bounds the dead letters between one success and the next.
	// Nil means 50; 0 means that the route is never suspended.
	Of *int `koanf:"of"`
}

// maxRouteTrip bounds what is remembered of a route.
const maxRouteTrip = 10_000

func orDefault[T any](p *T, def T) *T {
	if p == nil {
		return &def
	}
	return p
}

// Validate returns every fault, each beginning with the config name of its field.
func (c Config) Validate() error {
	var errs []error
	c = c.WithDefaults()
	atLeast := func(key string, got, least int) {
		if got < least {
			errs = append(errs, fmt.Errorf("%s: must be at least %d (got %d)", key, least, got))
		}
	}
	positive := func(key string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s: must be above 0 (got %v)", key, d))
		}
	}
	oneOf(&errs, "retry_after", c.RetryAfter, ScopeRoute, scopeKey)
	oneOf(&errs, "trigger", c.Trigger, triggerAny, TriggerFailure, TriggerStop)
	oneOf(&errs, "forward", c.Forward, forwardStash, ForwardGiveBack, ForwardDrop)
	oneOf(&errs, "on_give_up", c.OnGiveUp, giveUpSuspend, GiveUpDeadLetter, GiveUpExit)
	if d, err := time.ParseDuration(string(c.Reset)); err == nil {
		positive("reset", d)
	} else {
		oneOf(&errs, "reset", c.Reset, resetSuccess, ResetMinStable, ResetNever, "<duration>")
	}
	atLeast("trip_after", *c.TripAfter, 0)
	atLeast("route_trip.of", *c.RouteTrip.Of, 0)
	if n := *c.RouteTrip.Of; n > maxRouteTrip {
		errs = append(errs, fmt.Errorf("route_trip.of: must be at most %d (got %d)", maxRouteTrip, n))
	}
	atLeast("route_trip.keys", c.RouteTrip.Keys, 1)
	if s := c.RouteTrip.Share; !(s > 0 && s <= 1) {
		errs = append(errs, fmt.Errorf("route_trip.share: must be above 0 and at most 1 (got %v)", s))
	}
	atLeast("dead_trip.of", *c.DeadTrip.Of, 0)
	if n := *c.DeadTrip.Of; n > maxRouteTrip {
		errs = append(errs, fmt.Errorf("dead_trip.of: must be at most %d (got %d)", maxRouteTrip, n))
	}
	if s := c.DeadTrip.Share; !(s > 0 && s <= 1) {
		errs = append(errs, fmt.Errorf("dead_trip.share: must be above 0 and at most 1 (got %v)", s))
	}
	atLeast("max_restarts", c.MaxRestarts, 0)
	atLeast("max_stuck", c.MaxStuck, 1)
	atLeast("max_children", c.MaxChildren, 1)
	if *c.DrainGrace < 0 {
		errs = append(errs, fmt.Errorf("drain_grace: must not be negative (got %v)", *c.DrainGrace))
	}
	positive("window", c.Window)
	positive("child_idle", c.ChildIdle)
	if err := c.Restart.Validate(); err != nil {
		errs = append(errs, prefixed("restart.", err)...)
	}
	return errors.Join(errs...)
}

// oneOf adds a fault unless got is a known word.
func oneOf[W ~string](errs *[]error, key string, got W, known ...W) {
	if !slices.Contains(known, got) {
		*errs = append(*errs, fmt.Errorf("%s: unknown value %q (one of %q)", key, got, known))
	}
}

// prefixed puts the name of the enclosing key before each of the faults joined in err.
func prefixed(prefix string, err error) []error {
	faults := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	for i, f := range faults {
		faults[i] = fmt.Errorf("%s%w", prefix, f)
	}
	return faults
}
