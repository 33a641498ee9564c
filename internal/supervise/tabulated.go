package supervise

import (
	"time"

	"github.com/relaymq/relay/supervisor"
)

// tabulated is for how many failures the Func of a backoff is asked.
const tabulated = 64

// tabulate is b with what its Func says written down: no foreign code may run where delays are needed, under a lock.
func tabulate(b supervisor.Backoff) supervisor.Backoff {
	if b.Func == nil {
		return b
	}
	var delays [tabulated]time.Duration
	for n := range delays {
		delays[n] = ask(b, n)
	}
	b.Func = func(n int) time.Duration { return delays[min(n, tabulated-1)] }
	return b
}

// ask is what b's Func says, or the longest delay when it panics: Validate has told of that.
func ask(b supervisor.Backoff, n int) (d time.Duration) {
	defer func() {
		if recover() != nil {
			d = b.Max
		}
	}()
	return b.Func(n)
}
