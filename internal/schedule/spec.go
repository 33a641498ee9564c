package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/adhocore/gronx"

	"github.com/relaymq/relay/internal/subject"
)

// What CatchUp says.
const (
	CatchUpOne  = "one"  // the latest of the runs that were missed is published, late
	CatchUpNone = "none" // runs that were missed by more than a minute are left out
)

// Schedule is a message that is published again and again. Either Cron or Every is set.
type Schedule struct {
	Name string `koanf:"name" json:"name"`
	// Cron is a line of five fields: minute, hour, day of the month, month, day of the week.
	Cron string `koanf:"cron" json:"cron,omitempty"`
	// Every is an interval of whole seconds. Its runs are at multiples of it since 1970, so that all instances agree.
	Every time.Duration `koanf:"every" json:"every,omitempty"`
	// TZ is the time zone of Cron; empty is UTC.
	TZ      string            `koanf:"tz" json:"tz,omitempty"`
	Subject string            `koanf:"subject" json:"subject"`
	Body    string            `koanf:"body" json:"-"`
	Headers map[string]string `koanf:"headers" json:"-"`
	// CatchUp is CatchUpOne or CatchUpNone; empty is CatchUpOne.
	CatchUp string `koanf:"catch_up" json:"catch_up"`
}

// WithDefaults fills in what is empty.
func (s Schedule) WithDefaults() Schedule {
	if s.CatchUp == "" {
		s.CatchUp = CatchUpOne
	}
	return s
}

// ValidateID looks at the id of a delayed message, or the name of a schedule.
func ValidateID(id string) error {
	if !subject.IsName(id) {
		return fmt.Errorf("must be 1 to 64 letters, digits, - or _ (got %q)", id)
	}
	return nil
}

// ValidateSubject refuses subjects that nothing may be handed to: those of the server and of relay itself.
// Those in own are relay's, too: dead letters with a prefix of their own, and inboxes.
func ValidateSubject(service, s string, own ...string) error {
	if err := subject.ValidateLiteral(s); err != nil {
		return err
	}
	if subject.ServersOwn(s) || strings.HasPrefix(s, service+".") || slices.ContainsFunc(own, func(p string) bool { return subject.Matches(p, s) }) {
		return fmt.Errorf("%q is a subject of the server's or of relay's own: name one that a stream of yours holds", s)
	}
	return nil
}

// ValidateHeader refuses headers that mean something to the server or to relay.
func ValidateHeader(name string) error {
	if n := strings.ToLower(name); strings.HasPrefix(n, "nats-") || strings.HasPrefix(n, "relay-") {
		return fmt.Errorf("header %s means something to the server or to relay, and cannot be set on a message that is published later", name)
	}
	return nil
}

// Validate calls fault for each key that is wrong. For own see [ValidateSubject].
func (s Schedule) Validate(service string, fault func(key string, err error), own ...string) {
	if err := ValidateID(s.Name); err != nil {
		fault("name", err)
	}
	if err := ValidateSubject(service, s.Subject, own...); err != nil {
		fault("subject", err)
	}
	for name := range s.Headers {
		if err := ValidateHeader(name); err != nil {
			fault("headers", err)
		}
	}
	switch {
	case (s.Cron == "") == (s.Every == 0):
		fault("cron", errors.New("set cron or every, and not both"))
	case s.Cron != "" && (len(strings.Fields(s.Cron)) != 5 || !gronx.IsValid(s.Cron)):
		fault("cron", fmt.Errorf("must be five fields: minute, hour, day of the month, month, day of the week, such as \"30 3 * * *\" (got %q)", s.Cron))
	case s.Cron == "" && (s.Every < time.Second || s.Every%time.Second != 0):
		fault("every", fmt.Errorf("must be whole seconds, at least 1s (got %v)", s.Every))
	case s.Cron == "" && s.TZ != "":
		fault("tz", errors.New("is for cron only: an interval has no time zone"))
	}
	if _, err := time.LoadLocation(s.TZ); err != nil || s.TZ == "Local" {
		fault("tz", fmt.Errorf("must be a name of the time zone database, such as Europe/Vienna (got %q)", s.TZ))
	}
	if s.Cron != "" && gronx.IsValid(s.Cron) {
		if _, err := s.Next(time.Now()); err != nil {
			fault("cron", fmt.Errorf("never runs: no day has this day of the month, month and day of the week (got %q)", s.Cron))
		}
	}
}

// Next is the first run after t. The error says that there is none, or that the schedule is not valid.
func (s Schedule) Next(t time.Time) (time.Time, error) {
	if s.Every > 0 {
		n := t.Unix()/int64(s.Every/time.Second) + 1
		return time.Unix(n*int64(s.Every/time.Second), 0).UTC(), nil
	}
	zone, err := time.LoadLocation(s.TZ)
	if err != nil {
		return time.Time{}, err
	}
	return nextByClock(s.Cron, t.In(zone))
}

// Upcoming are the next n runs after t.
func (s Schedule) Upcoming(t time.Time, n int) (list []time.Time, err error) {
	for range n {
		if t, err = s.Next(t); err != nil {
			return list, err
		}
		list = append(list, t)
	}
	return list, nil
}

// Timing tells schedules apart whose runs are at other times, as [Record.Timing] has it.
func (s Schedule) Timing() string { return fmt.Sprintf("%s|%v|%s", s.Cron, s.Every, s.TZ) }
