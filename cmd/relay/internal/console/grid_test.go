package console

import "testing"

// A part of a rate below one a second was shown as 0, and of a limit with both bounds nobody saw the rate.
func TestGridLimit_regressionSmallRatesAndBothBounds(t *testing.T) {
	for want, l := range map[string]GridLimit{
		"3: a 1, b 2":                 {Concurrency: 3},
		"0.5/s: a 0.333/s, b 0.167/s": {Rate: 0.5},
		"3 and 123456.79/s: a 1 and 0.333/s, b 2 and 0.167/s": {Concurrency: 3, Rate: 123456.789},
	} {
		l.Add("b", 2, 0.5/3)
		l.Add("a", 1, 1.0/3)
		if got := l.Of() + ": " + l.Held(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
