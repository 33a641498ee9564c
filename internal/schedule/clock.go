package schedule

import (
	"errors"
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

// The cron library knows nothing of clocks that are set: it reads a line against a calendar. So it is asked about a calendar without a zone, and what it says
// is laid onto the periods in which the zone's offset is the same. Between them a wall clock skips an hour, or shows one twice.

// errNever says that a line has no run.
var errNever = errors.New("the schedule never runs")

// periods bounds how many are looked through: a 29th of February comes within eight years, on a given day of the week within forty.
const periods = 100

// nextByClock is the first time after t, in t's zone, at which the wall clock shows what the line says. A time that the clock shows twice counts once, the
// first time; but for a line whose hour is * or */n, which runs by the hour whatever the clock shows.
func nextByClock(line string, t time.Time) (time.Time, error) {
	byTheHour := strings.HasPrefix(strings.Fields(line)[1], "*")
	from := wall(t)
	for range periods {
		start, end := t.ZoneBounds()
		_, offset := t.Zone()
		shown, err := gronx.NextTickAfter(line, from, false)
		if err != nil {
			return time.Time{}, errNever
		}
		at := shown.Add(-time.Duration(offset) * time.Second)
		switch {
		case !end.IsZero() && !at.Before(end):
			t = end // and what the clock shows then is still to come
			from = wall(t).Add(-time.Nanosecond)
		case !byTheHour && shownBefore(shown, start):
			from = shown
		default:
			return at, nil
		}
	}
	return time.Time{}, errNever
}

// shownBefore tells whether the wall clock showed a time already before it was set at start.
func shownBefore(shown, start time.Time) bool {
	if start.IsZero() {
		return false
	}
	_, before := start.Add(-time.Nanosecond).Zone()
	return shown.Add(-time.Duration(before) * time.Second).Before(start)
}

// wall is what the clock shows, as a time of a calendar without a zone.
func wall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}
