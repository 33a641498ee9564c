package schedules

import (
	"testing"
	"time"

	"github.com/relaymq/relay/internal/schedule"
)

// An operator whose file is not that of the instances saw "waiting", with times at which nothing runs.
func TestScheduled_judgeAnotherDefinition(t *testing.T) {
	mine := schedule.Schedule{Name: "tick", Every: time.Minute, Subject: "jobs.tick"}
	for timing, want := range map[string]string{
		mine.Timing(): "waiting",
		schedule.Schedule{Every: time.Hour}.Timing(): otherDefinition,
	} {
		s := scheduled{Schedule: mine, Record: schedule.Record{Timing: timing, Next: time.Now()}}
		if err := s.judge(1); err != nil || s.State != want {
			t.Errorf("%s: %q, %v, want %q", timing, s.State, err, want)
		}
	}
}
