package supervise

import (
	"testing"

	"pgregory.net/rapid"
)

// However seldom successes came before, so many completions without one are overdue as were asked for, up to what a
// configuration may say, and never more than that.
func TestRhythm_isOverdueAfterAsManyAsAreAskedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r rhythm
		for _, row := range rapid.SliceOfN(rapid.IntRange(0, 20_000), 1, 5).Draw(t, "rows of failures before a success") {
			for range row {
				r.failed()
			}
			r.succeeded()
		}
		most := rapid.IntRange(1, 10_000).Draw(t, "most")
		for range most {
			r.failed()
		}
		if !r.overdue(most) {
			t.Fatalf("%d completions without a success, usually %d: not overdue", most, r.spacing)
		}
	})
}
