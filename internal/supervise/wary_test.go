package supervise

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Fifty healthy messages behind 20,000 bad ones waited for minutes when the handler is slow: the first success let the route flow, and
// what had waited in the stash was tried from its oldest message on. Messages that came back by themselves filled the window besides.
func TestWary_regressionHealthyMessagesBehindManyBadOnesOfASlowHandler_large(t *testing.T) {
	large(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8})
		slowly := func(context.Context, *Message, int) Verdict {
			time.Sleep(300 * time.Millisecond)
			return failed
		}
		const bad, good = 20_000, 50
		s := stream{b: b}
		for n := range uint64(bad) {
			s.publish(slowly, fmt.Sprint("bad", n), n+1)
		}
		for n := range uint64(good) {
			s.publish(succeed, fmt.Sprint("good", n), bad+n+1)
		}
		most := 0
		for range 20 {
			s.deliver(5 * time.Second)
			most = max(most, b.g.Status().Window)
			if time.Since(b.began) == 30*time.Second {
				for n := range uint64(good) {
					b.wantFinal(bad+n+1, AckMessage)
				}
			}
		}
		if most > MaxWindow {
			t.Errorf("%d messages in the window", most)
		}
		b.close()
	})
}
