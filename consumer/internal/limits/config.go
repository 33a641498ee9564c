// Package limits keeps the limits that routes share: what a configuration says of them, which of them bound a route, what this instance has of
// those that hold over the whole service, and what people are told. How a limit is kept in one process is internal/limit.
//
// A limit of a new kind is a field of [Limit] and of its bounds here, and a bound of internal/limit.
package limits

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/subject"
)

// Limit is a bound that routes share: how many messages of theirs run at once, how many start in a time, or both. Routes name it in
// [Route.Limits]. A message that finds no room waits, and spends no attempt.
type Limit struct {
	// Concurrency is how many handlers run at once. A handler that ignores its timeout and was given up does not count. Zero is no bound.
	Concurrency int `koanf:"concurrency"`
	// Rate is how many attempts start in a time. Zero is no bound.
	Rate Rate `koanf:"rate"`
	// Burst is how many attempts may start at once after a while with fewer. Zero means a twentieth of a second's, and at least 1.
	Burst int `koanf:"burst"`
	// Per is a template over the tokens of a message's subject, such as {1}: the bounds hold for each value of it. It may only name
	// tokens that the key of the route has. Empty: they hold for all messages together.
	Per string `koanf:"per"`
	// Scope is for whom the bounds hold: instance (default), for each by itself, or service, for all instances together. With Per they hold for
	// the service only on routes of one instance at a time.
	Scope string `koanf:"scope"`
}

// What Limit.Scope says.
const (
	ScopeInstance = "instance"
	ScopeService  = "service"
)

// WithDefaults fills the zero fields.
func (l Limit) WithDefaults() Limit {
	l.Scope = cmp.Or(l.Scope, ScopeInstance)
	if l.Rate.Count > 0 {
		l.Burst = cmp.Or(l.Burst, max(1, int(l.Rate.PerSecond()/20)))
	}
	return l
}

// Validate returns every fault of the limit by itself, each beginning with the config name of its field.
func (l Limit) Validate() error {
	l = l.WithDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if l.Concurrency < 0 || l.Concurrency > 1_000_000 {
		fault("concurrency: must be 1 to 1000000 (got %d)", l.Concurrency)
	}
	if l.Concurrency == 0 && l.Rate.Count == 0 {
		fault("concurrency: set it, or rate, or both: a limit needs at least one of them")
	}
	errs = append(errs, ValidateRate(l.Rate, l.Burst)...)
	if l.Scope != ScopeInstance && l.Scope != ScopeService {
		fault("scope: must be instance or service (got %q)", l.Scope)
	}
	if l.Per != "" {
		if _, err := subject.ParseTemplate(l.Per); err != nil {
			fault("per: %w", err)
		} else if !strings.Contains(l.Per, "{") {
			fault("per: must be a template over tokens of the subject, such as {1} (got %q)", l.Per)
		}
	}
	return errors.Join(errs...)
}

// ValidateRate says what is wrong with a rate and its burst; a rate that is not given is a zero.
func ValidateRate(r Rate, burst int) (errs []error) {
	if r.Count < 0 || r.Count > 0 && r.Per <= 0 {
		errs = append(errs, fmt.Errorf("rate: must be above 0 (got %v)", r))
	}
	if burst < 0 || burst > 1_000_000 {
		errs = append(errs, fmt.Errorf("burst: must be 1 to 1000000 (got %d)", burst))
	}
	if burst > 0 && r.Count == 0 {
		errs = append(errs, errors.New("burst: works only together with rate"))
	}
	return errs
}

// Rate is so many in a time, written as 100/s, 30/m, 1000/h or 5000/d. The zero value is none.
type Rate struct {
	Count int
	Per   time.Duration
}

var rateUnits = []struct {
	name string
	per  time.Duration
}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}}

// UnmarshalText reads a rate.
func (r *Rate) UnmarshalText(text []byte) error {
	count, unit, _ := strings.Cut(strings.TrimSpace(string(text)), "/")
	n, err := strconv.Atoi(strings.TrimSpace(count))
	for _, u := range rateUnits {
		if err == nil && u.name == strings.TrimSpace(unit) && n <= 10_000_000 {
			if n < 1 {
				return fmt.Errorf("rate %q: must be above 0 (omit it for no limit; pause the route to stop it)", text)
			}
			*r = Rate{n, u.per}
			return nil
		}
	}
	return fmt.Errorf("%q is not a rate: write so many in a second, minute, hour or day, such as 100/s, 30/m, 1000/h or 5000/d", text)
}

// MarshalText is the reverse of UnmarshalText.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r Rate) String() string {
	if r.Count == 0 {
		return ""
	}
	for _, u := range rateUnits {
		if u.per == r.Per {
			return fmt.Sprintf("%d/%s", r.Count, u.name)
		}
	}
	return fmt.Sprintf("%d/%v", r.Count, r.Per)
}

// PerSecond is the rate in a second.
func (r Rate) PerSecond() float64 {
	if r.Count == 0 {
		return 0
	}
	return float64(r.Count) / r.Per.Seconds()
}

// Bounds are those of the limit in one process.
func (l Limit) Bounds() limit.Bounds {
	l = l.WithDefaults()
	return limit.Bounds{Places: l.Concurrency, Rate: l.Rate.PerSecond(), Burst: l.Burst}
}

// Check is what is wrong with limits by themselves.
func Check(limits map[string]Limit) (faults []error) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if !subject.IsName(name) {
			faults = append(faults, fmt.Errorf("limits.%s: a name must be 1 to 64 letters, digits, - or _", name))
		}
		if err := limits[name].Validate(); err != nil {
			faults = append(faults, fmt.Errorf("limits.%s.%w", name, err))
		}
	}
	return faults
}

// divided tells whether instances have parts of the limit.
func (l Limit) divided() bool { return l.Scope == ScopeService && l.Per == "" }
