package supervise

import (
	"testing"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// The function of a backoff is foreign code: it is asked before the first message and never again, and may panic.
func TestTabulate_asksBeforeTheFirstMessageOnly(t *testing.T) {
	calls := 0
	b := tabulate(supervisor.Backoff{
		Func: func(n int) time.Duration {
			calls++
			if n == 2 {
				panic("two")
			}
			return time.Duration(n) * time.Second
		},
		Max: time.Minute, Jitter: new(0.0),
	})
	before := calls
	for n, want := range map[int]time.Duration{0: 0, 1: time.Second, 2: time.Minute, 50: 50 * time.Second, 63: time.Minute, 1 << 40: time.Minute} {
		if d := b.Delay(n); d != want {
			t.Errorf("after failure %d: %v, want %v", n, d, want)
		}
	}
	if calls != before {
		t.Errorf("it was asked %d times more when delays were needed", calls-before)
	}
}
