package health

import (
	"errors"
	"testing"
	"time"
)

func TestStop(t *testing.T) {
	t.Parallel()
	var s Stop
	began, full, away := time.Now(), errors.New("full"), errors.New("away")
	at := func(d time.Duration) time.Time { return began.Add(d) }
	for _, step := range []struct {
		after time.Duration
		err   error
		want  Noted
		since time.Duration
	}{
		{0, full, Began, 0},
		{time.Second, away, Nothing, 0},
		{59 * time.Second, full, Nothing, 0},
		{60 * time.Second, away, OtherReason, 0},
		{61 * time.Second, full, Nothing, 0},
		{70 * time.Second, nil, Over, 70 * time.Second},
		{71 * time.Second, away, Began, 71 * time.Second},
	} {
		if got := s.Note(step.err, at(step.after)); got != step.want {
			t.Errorf("after %v, %v: got %v, want %v", step.after, step.err, got, step.want)
		}
		if since, err := s.Now(); err != step.err || !since.Equal(at(step.since)) {
			t.Errorf("after %v: stopped since %v by %v", step.after, since.Sub(began), err)
		}
	}
}
