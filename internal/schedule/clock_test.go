package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adhocore/gronx"
)

// The clocks of these zones are set by an hour, by half an hour, at midnight, at the quarter of an hour, in the south, or not at all.
var zones = []string{
	"Europe/Vienna", "Europe/Berlin", "Europe/London", "Australia/Sydney", "Africa/Cairo", "America/New_York", "America/St_Johns", "Australia/Lord_Howe",
	"Pacific/Chatham", "America/Santiago", "Asia/Beirut", "America/Havana", "Atlantic/Azores", "Asia/Kolkata", "UTC",
}

var lines = []string{
	"*/30 * * * *", "17 */2 * * *", "30 2 * * *", "30 1 * * *", "15 0 * * *", "30 23 * * *", "*/20 1-3 * * *", "5,35 2 * * 0",
}

// changes are the moments of a year at which the clock of a zone is set.
func changes(zone *time.Location, year int) (list []time.Time) {
	for t, end := time.Date(year, 1, 1, 0, 0, 0, 0, zone), time.Date(year+1, 1, 1, 0, 0, 0, 0, zone); ; {
		_, next := t.ZoneBounds()
		if next.IsZero() || !next.Before(end) {
			return list
		}
		list, t = append(list, next), next
	}
}

// Autumn was wrong: hourly lines left out the repeated hour, and daily ones took the second occurrence. Here every minute of some hours around each change is
// looked at by itself.
func TestNext_regressionClocksThatAreSet(t *testing.T) {
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		around := changes(zone, 2026)
		if len(around) == 0 {
			around = []time.Time{time.Date(2026, 6, 1, 0, 0, 0, 0, zone)}
		}
		for _, change := range around {
			from, to := change.Add(-150*time.Minute).Truncate(time.Minute), change.Add(150*time.Minute)
			for _, line := range lines {
				var want []time.Time
				seen := map[time.Time]bool{}
				for at := from.Add(time.Minute).UTC(); at.Before(to); at = at.Add(time.Minute) {
					shown := wall(at.In(zone))
					due, err := gronx.New().IsDue(line, shown)
					if err != nil {
						t.Fatal(err)
					}
					if due && (strings.HasPrefix(strings.Fields(line)[1], "*") || !seen[shown]) {
						want = append(want, at)
					}
					seen[shown] = true
				}
				var got []time.Time
				for at := from; ; {
					next, err := (Schedule{Cron: line, TZ: name}).Next(at)
					if err != nil {
						t.Fatal(err)
					}
					if !next.Before(to) {
						break
					}
					got, at = append(got, next), next
				}
				if !slices.EqualFunc(got, want, time.Time.Equal) {
					t.Errorf("%s, %q around %v: %v, want %v", name, line, change, got, want)
				}
			}
		}
	}
}

// The same in numbers that one can check by hand.
func TestNext_autumnAndSpring(t *testing.T) {
	for _, c := range []struct{ zone, line, from, want string }{
		// On 25 October 2026 in Vienna the clock shows 02:00 to 03:00 twice: at 00:00 and at 01:00 UTC.
		{"Europe/Vienna", "0 * * * *", "2026-10-24T23:30:00Z", "2026-10-25T00:00:00Z 2026-10-25T01:00:00Z 2026-10-25T02:00:00Z"},
		{"Europe/Vienna", "*/30 * * * *", "2026-10-25T00:15:00Z", "2026-10-25T00:30:00Z 2026-10-25T01:00:00Z 2026-10-25T01:30:00Z 2026-10-25T02:00:00Z"},
		{"Europe/Vienna", "30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		{"Europe/Vienna", "30 2 * * *", "2026-10-25T00:45:00Z", "2026-10-26T01:30:00Z"},
		{"Europe/Vienna", "30 2 * * *", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z"},
		// On 29 March 2026 it shows no 02:30.
		{"Europe/Vienna", "30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"},
		{"Europe/Vienna", "*/30 * * * *", "2026-03-29T00:15:00Z", "2026-03-29T00:30:00Z 2026-03-29T01:00:00Z"},
		{"Australia/Sydney", "30 2 * * *", "2026-04-04T10:00:00Z", "2026-04-04T15:30:00Z 2026-04-05T16:30:00Z"},
		{"Europe/London", "30 1 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		{"Europe/Vienna", "0 0 29 2 *", "2026-03-01T00:00:00Z", "2028-02-28T23:00:00Z 2032-02-28T23:00:00Z"},
	} {
		at, err := time.Parse(time.RFC3339, c.from)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range strings.Fields(c.want) {
			next, err := (Schedule{Cron: c.line, TZ: c.zone}).Next(at)
			if err != nil || next.Format(time.RFC3339) != want {
				t.Errorf("%s %q after %v: %v, %v; want %s", c.zone, c.line, at, next, err, want)
			}
			at = next
		}
	}
}

func TestNext_neverRuns(t *testing.T) {
	for _, line := range []string{"0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *"} {
		s := Schedule{Name: "a", Cron: line, Subject: "orders.x"}
		said := ""
		s.Validate("relay", func(key string, err error) { said += key + " " + err.Error() })
		if !strings.HasPrefix(said, "cron never runs: no day has this") || !strings.Contains(said, line) {
			t.Errorf("%q: %q", line, said)
		}
	}
}
