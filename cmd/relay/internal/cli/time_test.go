package cli

import (
	"testing"
	"time"
)

// A time is written as such or as an age. An age below 0 was a time to come, since which there was nothing.
func TestParseTime_regressionNoAgeBelowZero(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{"": {}, "2h": now.Add(-2 * time.Hour), "0s": now, "2026-11-28T00:00:00Z": time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1h", "1x", "yesterday"} {
		if got, err := ParseTime(text, now); err == nil {
			t.Errorf("%q was taken as %v", text, got)
		}
	}
}
