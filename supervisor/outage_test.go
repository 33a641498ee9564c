package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// SINCE was the time of the last probe, and WHY "its wait is over", however long the outage lasted.
func TestStatus_regressionSinceIsTheBeginningOfTheTroubleAndWhyItsLastFailure(t *testing.T) {
	for what, opts := range map[string]Options{
		"key":   {Config: Config{RouteTripAfter: new(0), Restart: Backoff{Min: time.Second, Max: 4 * time.Second}}},
		"route": {Config: Config{TripAfter: new(0), RouteTripAfter: new(4), Restart: Backoff{Min: time.Second, Max: 4 * time.Second}}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, opts)
				var up atomic.Bool
				handle := func(context.Context, *Message, int) Verdict {
					time.Sleep(100 * time.Millisecond) // a probe is to be seen
					if up.Load() {
						return ok
					}
					return Verdict{Kind: Retry, Err: errors.New("refused")}
				}
				began := time.Now()
				for i := range uint64(20) {
					key := "k"
					if what == "route" {
						key = fmt.Sprint("k", i)
					}
					b.send(handle, key, i+1)
				}
				seen := map[State]int{}
				look := func() (s State, since time.Time, why string) {
					if what == "route" {
						st := b.g.Status()
						return st.State, st.Since, st.Why
					}
					list := b.g.KeyStates(1)
					if len(list) == 0 {
						return Flowing, time.Now(), ""
					}
					return list[0].State, list[0].Since, list[0].Why
				}
				for range 600 {
					time.Sleep(50 * time.Millisecond)
					state, since, why := look()
					if state == Flowing {
						continue
					}
					seen[state]++
					if since.Sub(began) > time.Second || !strings.Contains(why, "refused") {
						t.Fatalf("after %v it is %v since %v, because %q", time.Since(began), state, since.Sub(began), why)
					}
				}
				if seen[Waiting] == 0 || seen[Probing] == 0 {
					t.Fatalf("states seen: %v", seen)
				}
				up.Store(true)
				time.Sleep(time.Minute)
				if state, since, _ := look(); state != Flowing || time.Since(since) < 30*time.Second && what == "route" {
					t.Errorf("%v since %v", state, since.Sub(began))
				}
				b.close()
			})
		})
	}
}
