package consumer

import (
	"slices"
	"time"
)

// Fallback is a second handler of a route. A message that it acknowledges is done, and a caller gets its result. A message that it
// fails waits as if there were no fallback: it spends no attempt, and does not count towards a trip. Probes go to the route's own
// handler only. Deadlines and callers are checked before the fallback, too.
type Fallback struct {
	// When are the cases in which it is used: [FallbackWaiting], [FallbackExhausted]. Empty means both.
	When []string `koanf:"when"`
	// Concurrency is how many of its handlers run at once, beside those of the route. Zero means 8.
	Concurrency int `koanf:"concurrency"`
	// Timeout ends an attempt of it. Zero means that of the route.
	Timeout time.Duration `koanf:"timeout"`
	// Handler is required. All keys share it. It may be a [Starter], a [Stopper], a [Checker] and [Outside].
	Handler Handler `koanf:"-"`
}

// Values of Fallback.When.
const (
	// FallbackWaiting: the key of a message waits, or its whole route does. It needs supervisor.forward: stash.
	FallbackWaiting = "waiting"
	// FallbackExhausted: a message would be dead-lettered because its attempts or its retry.max_age are spent. A message
	// whose handler returned [Dead] does not get the fallback.
	FallbackExhausted = "exhausted"
)

// WithDefaults fills the zero fields, for a route with this timeout.
func (f Fallback) WithDefaults(timeout time.Duration) Fallback {
	if len(f.When) == 0 {
		f.When = []string{FallbackWaiting, FallbackExhausted}
	}
	if f.Concurrency == 0 {
		f.Concurrency = 8
	}
	if f.Timeout == 0 {
		f.Timeout = timeout
	}
	return f
}

// validateFallback says what is wrong with the fallback, but for its handler.
func (r Route) validateFallback(fault func(format string, args ...any)) {
	f := r.Fallback
	if f == nil {
		return
	}
	for i, when := range f.When {
		switch {
		case when != FallbackWaiting && when != FallbackExhausted:
			fault("fallback.when[%d]: must be %s or %s (got %q)", i, FallbackWaiting, FallbackExhausted, when)
		case slices.Contains(f.When[:i], when):
			fault("fallback.when[%d]: %q is listed twice", i, when)
		case when == FallbackWaiting && r.Supervisor.Forward != "stash":
			fault("fallback.when[%d]: %s needs supervisor.forward: stash; otherwise relay keeps no messages for the fallback (got %q)", i, when, r.Supervisor.Forward)
		}
	}
	if f.Concurrency < 1 || f.Concurrency > 65_536 {
		fault("fallback.concurrency: must be 1 to 65536 (got %d)", f.Concurrency)
	}
	if f.Timeout <= 0 {
		fault("fallback.timeout: must be above 0 (got %v)", f.Timeout)
	}
}
