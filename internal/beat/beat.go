// Package beat has what happens again and again in a process happen at the same moments, so that an idle one is woken once for all of it:
// waking a thread costs more than what there is to do.
package beat

import "time"

// epoch is when all beats began.
var epoch = time.Now()

// Ticker ticks at the multiples of its period since the process began. Call [Ticker.Next] after each tick.
type Ticker struct {
	C     <-chan time.Time
	timer *time.Timer
	every time.Duration
}

// NewTicker begins with the next multiple.
func NewTicker(every time.Duration) *Ticker {
	t := time.NewTimer(Until(every))
	return &Ticker{t.C, t, every}
}

// Next has it tick once more.
func (t *Ticker) Next() { t.timer.Reset(Until(t.every)) }

// Reset changes the period.
func (t *Ticker) Reset(every time.Duration) {
	t.every = every
	t.Next()
}

// Stop ends it.
func (t *Ticker) Stop() { t.timer.Stop() }

// Until is how long the next multiple of a period is away.
func Until(every time.Duration) time.Duration {
	since := time.Since(epoch)
	if since < 0 { // in a bubble of testing/synctest, whose time begins with a full day, long ago
		since = time.Duration(time.Now().UnixNano())
	}
	return every - since%every
}
