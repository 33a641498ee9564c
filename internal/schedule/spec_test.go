package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSchedule_nextOverDaylightSaving(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, cron, from string
		want             []string // in New York
	}{
		{"a time that is left out that day has no run", "30 2 * * *", "2026-03-07T12:00:00-05:00", []string{"2026-03-09T02:30:00-04:00", "2026-03-10T02:30:00-04:00"}},
		{"a time that comes twice that day has one run", "30 1 * * *", "2026-10-31T12:00:00-04:00", []string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		{"half hours go on through the hour that comes twice", "*/30 * * * *", "2026-11-01T01:10:00-04:00", []string{"2026-11-01T01:30:00-04:00", "2026-11-01T01:00:00-05:00", "2026-11-01T01:30:00-05:00"}},
		{"half hours go on after the hour that is left out", "*/30 * * * *", "2026-03-08T01:10:00-05:00", []string{"2026-03-08T01:30:00-05:00", "2026-03-08T03:00:00-04:00"}},
		{"leap day", "0 0 29 2 *", "2026-03-08T00:00:00-05:00", []string{"2028-02-29T00:00:00-05:00"}},
	} {
		from, err := time.Parse(time.RFC3339, c.from)
		if err != nil {
			t.Fatal(err)
		}
		list, err := Schedule{Cron: c.cron, TZ: "America/New_York"}.Upcoming(from, len(c.want))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range c.want {
			if w, _ := time.Parse(time.RFC3339, want); !list[i].Equal(w) {
				t.Errorf("%s: run %d is %v, want %s", c.name, i, list[i], want)
			}
		}
	}
}

func TestSchedule_validateNamesTheKey(t *testing.T) {
	t.Parallel()
	good := Schedule{Name: "nightly", Cron: "30 3 * * *", Subject: "jobs.nightly"}
	for want, change := range map[string]func(*Schedule){
		"":         func(*Schedule) {},
		"name":     func(s *Schedule) { s.Name = "a.b" },
		"cron":     func(s *Schedule) { s.Cron = "30 3 * *" },
		"cron ":    func(s *Schedule) { s.Cron = "0 0 30 2 *" }, // never
		"cron  ":   func(s *Schedule) { s.Every = time.Minute },
		"every":    func(s *Schedule) { s.Cron, s.Every = "", 1500*time.Millisecond },
		"tz":       func(s *Schedule) { s.TZ = "Mars/Olympus" },
		"subject":  func(s *Schedule) { s.Subject = "relay.due.x" },
		"subject ": func(s *Schedule) { s.Subject = "broken.x" },
		"headers":  func(s *Schedule) { s.Headers = map[string]string{"nats-rollup": "all"} },
	} {
		s, got := good, []string{}
		change(&s)
		s.Validate("relay", func(key string, err error) { got = append(got, key) }, "broken.>")
		if want := strings.TrimSpace(want); want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("faults %v, want %q", got, want)
		}
	}
}

func TestSchedule_latestAfterALongTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 30, 0, time.UTC)
	for _, s := range []Schedule{{Every: time.Minute}, {Cron: "* * * * *"}} {
		run, after, missed, err := s.latest(now.AddDate(-1, 0, 0).Truncate(time.Minute), now)
		if err != nil || !run.Equal(now.Truncate(time.Minute)) || !after.Equal(now.Truncate(time.Minute).Add(time.Minute)) || missed < 2*24*60 {
			t.Errorf("%+v: run %v, then %v, %d missed, %v", s, run, after, missed, err)
		}
	}
}
