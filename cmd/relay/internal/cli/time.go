package cli

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/internal/schedule"
)

// KnownTime is nil for no time.
func KnownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Whenever is When, of a time that may not be known.
func Whenever(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return When(*t)
}

// When is a time as people read it: local, to the second.
func When(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// ParseTime reads a time, or an age before now.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(s); err == nil {
		if age < 0 {
			return time.Time{}, fmt.Errorf("%q: an age must not be below 0; a time to come is written such as %s", s, now.Add(-age).UTC().Format(time.RFC3339))
		}
		return now.Add(-age), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("%q: must be a time such as %s or an age such as 2h", s, now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// InZone shows a run in the time zone of its schedule.
func InZone(s schedule.Schedule, t time.Time) string {
	zone, err := time.LoadLocation(s.TZ)
	if err != nil || t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 15:04:05 MST")
}
