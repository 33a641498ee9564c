package limit

import (
	"time"

	"golang.org/x/time/rate"
)

// starts is the rate of a bucket: how many may start in a second. The zero value lets all start. The lock of the book is held where it is used.
type starts struct{ tokens *rate.Limiter }

// limits tells whether there is a rate.
func (s *starts) limits() bool { return s.tokens != nil }

// bound sets the rate, or takes it away. What was spent stays spent.
func (s *starts) bound(to Bounds) {
	switch {
	case to.Rate <= 0:
		s.tokens = nil
	case s.tokens == nil:
		s.tokens = rate.NewLimiter(rate.Limit(to.Rate), max(1, to.Burst))
	default:
		s.tokens.SetLimit(rate.Limit(to.Rate))
		s.tokens.SetBurst(max(1, to.Burst))
	}
}

// allows tells whether n may start now; if not, from when on they may, or the zero time if only a larger burst can help.
func (s *starts) allows(n int, now time.Time) (ok bool, at time.Time) {
	if s.tokens == nil {
		return true, time.Time{}
	}
	has, need := s.tokens.TokensAt(now), float64(n)
	if has >= need {
		return true, time.Time{}
	}
	if need > float64(s.tokens.Burst()) {
		return false, time.Time{} // it never fits; a reserved token that is given back has it looked at again
	}
	// A nanosecond more: the wait is rounded, and a timer that fires before there is a token would fire again and again.
	return false, now.Add(time.Duration((need-has)/float64(s.tokens.Limit())*float64(time.Second)) + 1)
}

// spend is for one that starts.
func (s *starts) spend(now time.Time) {
	if s.tokens != nil {
		s.tokens.AllowN(now, 1)
	}
}

// isRested tells whether nothing has started lately: a rate that is made anew is the same.
func (s *starts) isRested(now time.Time) bool {
	return s.tokens == nil || s.tokens.TokensAt(now) >= float64(s.tokens.Burst())
}
