package natsconn

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// limiter lets through a burst and then one a second, and counts the rest: a permission that is missing may be reported
// for each message.
type limiter struct {
	rate    *rate.Limiter
	dropped atomic.Uint64
}

func newLimiter() *limiter { return &limiter{rate: rate.NewLimiter(rate.Every(time.Second), 5)} }

// allow tells whether to log, and how many were not logged since the last time.
func (l *limiter) allow() (ok bool, dropped uint64) {
	if !l.rate.Allow() {
		l.dropped.Add(1)
		return false, 0
	}
	return true, l.dropped.Swap(0)
}
