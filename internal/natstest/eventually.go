package natstest

import (
	"testing"
	"time"
)

// within is how long [Eventually] waits: much longer than anything takes on a busy machine.
const within = time.Minute

// Eventually returns when ok does. After a minute the test fails with what, and with the details as they are by then.
//
// It looks at once, and then the less often the longer it has waited and the longer a look takes: many tests wait side by side, and all that
// look every moment would keep the machine from what they wait for. What lasts for a moment only is not to be waited for this way.
func Eventually(t testing.TB, what string, ok func() bool, details ...any) {
	t.Helper()
	for began := time.Now(); ; {
		looked := time.Now()
		if ok() {
			return
		}
		now := time.Now()
		if now.Sub(began) > within {
			for _, d := range details {
				t.Logf("%v", d)
			}
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(untilNextLook(now.Sub(began), now.Sub(looked)))
	}
}

// untilNextLook is a twentieth of what was waited, and leaves most of the time to what is waited for.
func untilNextLook(waited, look time.Duration) time.Duration {
	return max(2*time.Millisecond, min(waited/20, 50*time.Millisecond), min(4*look, 200*time.Millisecond))
}
