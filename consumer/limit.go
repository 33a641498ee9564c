package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/supervisor"
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

// WithDefaults fills the fields that say nothing.
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
		fault("concurrency: or rate is required: without one of them there is no limit")
	}
	errs = append(errs, validateRate(l.Rate, l.Burst)...)
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

// validateRate says what is wrong with a rate and its burst; a rate that is not given is a zero.
func validateRate(r Rate, burst int) (errs []error) {
	if r.Count < 0 || r.Count > 0 && r.Per <= 0 {
		errs = append(errs, fmt.Errorf("rate: must be above 0 (got %v)", r))
	}
	if burst < 0 || burst > 1_000_000 {
		errs = append(errs, fmt.Errorf("burst: must be 1 to 1000000 (got %d)", burst))
	}
	if burst > 0 && r.Count == 0 {
		errs = append(errs, errors.New("burst: is of no use without rate"))
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

func (l Limit) bounds() limit.Bounds {
	l = l.WithDefaults()
	return limit.Bounds{Places: l.Concurrency, Rate: l.Rate.PerSecond(), Burst: l.Burst}
}

// CheckLimits says what is wrong with the limits that a route names, each fault beginning with the config name of its field.
func (r Route) CheckLimits(limits map[string]Limit) error {
	if r.part != nil { // the route was checked
		return nil
	}
	var errs []error
	for i, name := range r.Limits {
		l, known := limits[name]
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("limits[%d]: there is no limit %q: limits: lists them", i, name))
		case slices.Contains(r.Limits[:i], name):
			errs = append(errs, fmt.Errorf("limits[%d]: %q is there twice", i, name))
		case l.Per != "" && l.Scope == ScopeService && !r.Leased() && r.Partitions == 0:
			errs = append(errs, fmt.Errorf("limits[%d]: limit %q: per %q holds over all instances only on routes with instances: one; give the limit scope: instance, or the route instances: one", i, name, l.Per))
		case l.Per != "":
			if err := r.checkPer(l.Per); err != nil {
				errs = append(errs, fmt.Errorf("limits[%d]: limit %q: per %q: %w", i, name, l.Per, err))
			}
		}
	}
	return errors.Join(errs...)
}

// checkPer says why a limit cannot be kept per that template for the messages of a route.
func (r Route) checkPer(per string) error {
	t, err := subject.ParseTemplate(per)
	if err != nil {
		return err
	}
	for _, s := range r.Subjects {
		// > stands for one token at least.
		if _, err := t.Expand(s); err != nil {
			return fmt.Errorf("subject %q has fewer tokens than %s names", s, per)
		}
	}
	key := cmp.Or(r.Key, "subject")
	if key == "subject" || key == per {
		return nil
	}
	k, _ := subject.ParseTemplate(key)
	for _, token := range t.Tokens() {
		if key == "route" || !slices.Contains(k.Tokens(), token) && !slices.Contains(k.Tokens(), -1) {
			return fmt.Errorf("the key of the route is %q: messages of one key would have different limits; name the token in key, too", key)
		}
	}
	return nil
}

// checkedLimits is what is wrong with limits by themselves.
func checkedLimits(limits map[string]Limit) (faults []error) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if !nameRule.MatchString(name) {
			faults = append(faults, fmt.Errorf("limits.%s: a name must be 1 to 64 letters, digits, - or _", name))
		}
		if err := limits[name].Validate(); err != nil {
			faults = append(faults, fmt.Errorf("limits.%s.%w", name, err))
		}
	}
	return faults
}

// ownLimit is the name of the limit that is a route's own rate.
func ownLimit(route string) string { return "rate of " + route }

// ownLimit is the limit that is the route's own rate; nil without one.
func (rt *route) ownLimit() *limit.Limit { return rt.relay.book.Get(ownLimit(rt.name())) }

// ownBounds are those of the route on an instance: its rate and, as no group of a partition knows of the others, its concurrency.
func (r Route) ownBounds() limit.Bounds {
	l := Limit{Rate: r.Rate, Burst: r.Burst}
	if r.part != nil {
		l.Concurrency = r.Concurrency
	}
	return l.bounds()
}

// bounded tells whether the route has a limit of its own.
func (r Route) bounded() bool { return r.Rate.Count > 0 || r.part != nil && r.part.To == nil }

// limitNames are those of the limits of the route, with that of its own rate.
func (r Route) limitNames() []string {
	if !r.bounded() {
		return r.Limits
	}
	return append(slices.Clip(r.Limits), ownLimit(r.calledName()))
}

// enterLimits has the rate of a route hold that begins.
func (r *Relay) enterLimits(cfg Route) {
	if name := ownLimit(cfg.calledName()); cfg.bounded() {
		r.book.Set(name, cfg.ownBounds())
	} else if cfg.part == nil {
		r.book.Remove(name)
	}
}

// setLimits makes the limits of the configuration those that hold.
func (r *Relay) setLimits(limits map[string]Limit) {
	r.limitMu.Lock()
	defer r.limitMu.Unlock()
	for name := range r.limits {
		if _, stays := limits[name]; !stays {
			r.book.Remove(name)
		}
	}
	for name, l := range limits {
		r.setLimit(name, l)
	}
	r.limits = limits
	select {
	case r.limitsSet <- struct{}{}:
	default:
	}
}

// setLimit makes a limit, or changes it. Of one that all instances share this one has nothing at first, and then its part: see shareLimits.
func (r *Relay) setLimit(name string, l Limit) {
	in := r.book.Get(name)
	if !l.divided() {
		in = r.book.Set(name, l.bounds())
		in.Fence(nil)
		in.Own(l.bounds())
	} else if in == nil {
		in = r.book.Set(name, l.bounds())
		in.Close(noPart)
	} else if !r.limits[name].divided() {
		in.Close(noPart)
	}
}

// planLimit makes a limit of a change that is not accepted yet.
func (r *Relay) planLimit(name string, l Limit) *limit.Limit {
	in := r.book.Plan(name, l.bounds())
	if l.divided() {
		in.Close(noPart)
	}
	return in
}

// divided tells whether instances have parts of the limit.
func (l Limit) divided() bool { return l.Scope == ScopeService && l.Per == "" }

// Limits are those that hold now.
func (r *Relay) Limits() map[string]Limit {
	r.limitMu.Lock()
	defer r.limitMu.Unlock()
	return r.limits
}

// limitsFor is what the group of a route is bounded by, beside its concurrency; nil for nothing. What is not there is planned.
func (r *Relay) limitsFor(cfg Route, limits map[string]Limit) *supervisor.Limits {
	if len(cfg.Limits) == 0 && !cfg.bounded() {
		return nil
	}
	opts := &supervisor.Limits{Book: r.book, Name: cfg.Name}
	type template struct {
		limit *limit.Limit
		per   subject.Template
	}
	var per []template
	for _, name := range cfg.Limits {
		l, known := limits[name]
		if !known {
			continue // a fault, which New tells
		}
		in := r.book.Get(name)
		if in == nil {
			in = r.planLimit(name, l)
		}
		if l.Per == "" {
			opts.Always = append(opts.Always, limit.Need{Limit: in})
			continue
		}
		t, _ := subject.ParseTemplate(l.Per) // validated
		per = append(per, template{in, t})
	}
	if cfg.bounded() {
		own := r.book.Plan(ownLimit(cfg.calledName()), cfg.ownBounds()) // which changes when the route is entered
		opts.Always = append(opts.Always, limit.Need{Limit: own})
	}
	if len(per) > 0 {
		opts.Also = func(w supervisor.Work) (needs []limit.Need) {
			for _, p := range per {
				value, err := p.per.Expand(w.(*message).subject)
				if err != nil {
					value = w.(*message).subject // replayed from another route
				}
				needs = append(needs, limit.Need{Limit: p.limit, Value: value})
			}
			return needs
		}
	}
	return opts
}

// maxLimitsWaiting is how many values of a limit a status lists.
const maxLimitsWaiting = 20

func (r *Relay) limitStatus() (list []control.LimitStatus) {
	limits := r.Limits()
	for _, in := range r.book.Status() {
		l, named := limits[in.Name]
		if l = l.WithDefaults(); !named {
			l.Scope = ScopeInstance // the rate of a route
		}
		s := control.LimitStatus{
			Name: in.Name, Concurrency: in.Bounds.Places, Rate: in.Bounds.Rate, Burst: in.Bounds.Burst, Per: l.Per, Scope: l.Scope,
			Used: in.Used, Holders: in.Holders, Closed: control.Cut(in.Closed, control.MaxText),
		}
		if l.divided() {
			if s.Part, s.Others = in.Bounds.Places, control.Cut(in.Note, control.MaxText); in.Closed == "" {
				s.PartRate = in.Bounds.Rate
			}
			s.Concurrency, s.Rate, s.Burst = l.Concurrency, l.Rate.PerSecond(), l.Burst
		}
		if !in.Until.IsZero() {
			s.Left, s.Until, s.Why = &in.Left, &in.Until, control.Cut(in.Why, control.MaxText)
		}
		for _, w := range in.Waiting {
			if len(s.Waiting) == maxLimitsWaiting {
				s.WaitingMore++
				continue
			}
			s.Waiting = append(s.Waiting, control.LimitWaiting{Value: control.Cut(w.Value, control.MaxKey), Used: w.Used, Since: w.Since, Routes: w.Waiting})
		}
		list = append(list, s)
	}
	return list
}

// limitedBy says what limit keeps messages of the route from starting, and since when; an empty text says that none does.
func (r *Relay) limitedBy(g supervisor.Status) (why string, since time.Time) {
	if g.State != supervisor.Flowing || len(g.Limited) == 0 {
		return "", time.Time{}
	}
	first := g.Limited[0]
	for _, l := range g.Limited {
		if l.Shared {
			first = l
			break
		}
	}
	if !first.Shared {
		return "", time.Time{} // of keys: others flow
	}
	in := r.book.Get(first.Limit)
	if in == nil {
		return "limit " + first.Limit, first.Since
	}
	return describeLimit(in.Status()), first.Since
}

// describeLimit says what a limit allows and who holds how much of it.
func describeLimit(s limit.Status) string {
	if s.Note == "" {
		return describeHere(s)
	}
	return describeHere(s) + "; " + s.Note
}

func describeHere(s limit.Status) string {
	text := "limit " + s.Name
	switch {
	case s.Closed != "":
		return text + ": " + s.Closed
	case !s.Until.IsZero() && s.Left == 0:
		return fmt.Sprintf("%s: nothing until %s: %s", text, s.Until.UTC().Format(time.RFC3339), s.Why)
	}
	if s.Bounds.Places > 0 {
		text += fmt.Sprintf(": %d of %d run", s.Used, s.Bounds.Places)
		var who []string
		for name, n := range s.Holders {
			if n > 0 {
				who = append(who, fmt.Sprintf("%d of %s", n, name))
			}
		}
		slices.Sort(who)
		if len(who) > 0 {
			text += " (" + strings.Join(who, ", ") + ")"
		}
	}
	if s.Bounds.Rate > 0 {
		text += fmt.Sprintf("; %.6g start in a second", s.Bounds.Rate)
	}
	return strings.Replace(text, s.Name+";", s.Name+":", 1)
}
