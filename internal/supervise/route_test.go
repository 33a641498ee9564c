package supervise

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func TestRoute_tripsAfterFailuresInARowOverThreeKeys(t *testing.T) {
	for _, tt := range []struct {
		keys, after int
		trips       bool
	}{{20, 20, true}, {19, 20, false}, {3, 3, true}, {2, 3, false}, {20, 0, false}} {
		t.Run(fmt.Sprintf("%d keys, route_trip.of %d", tt.keys, tt.after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(tt.after)}}})
				b.redeliver = false
				for i := range tt.keys {
					b.send(failing, fmt.Sprint("k", i), uint64(i+1))
				}
				synctest.Wait()
				if trips := len(b.moves("route")) > 0; trips != tt.trips {
					t.Errorf("tripped: %v", trips)
				}
				b.close()
			})
		})
	}
}

func TestRoute_twoHoursOfOutageBehindMoreSubjectsThanTheStashHolds_large(t *testing.T) {
	large(t)
	const n = 1100 // more than the stash holds: each one beyond is given back and delivered anew for two hours
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 20, MaxAge: 24 * time.Hour, Config: supervisor.Config{Restart: supervisor.Backoff{Jitter: new(0.2)}}})
		var down atomic.Bool
		down.Store(true)
		handle := func(context.Context, *Message, int) Verdict {
			if down.Load() {
				return failed
			}
			return ok
		}
		for s := range uint64(n) {
			b.send(handle, fmt.Sprint("k", s), s+1)
		}
		time.Sleep(2 * time.Hour)
		if starts := len(b.allStarts()); starts > n+2000 {
			t.Errorf("%d starts during the outage", starts) // each message once, and one that failed every four seconds
		}
		down.Store(false)
		time.Sleep(time.Hour)
		for s := range uint64(n) {
			if o := b.wantFinal(s+1, AckMessage); o.Attempts > 2 {
				t.Fatalf("message %d spent %d attempts", s+1, o.Attempts)
			}
		}
		b.close()
	})
}

// tripAway trips the route with messages that get no answer, so that it asks one at a time.
func tripAway(b *bench, keys int) {
	for i := range keys {
		b.send(func(context.Context, *Message, int) Verdict {
			return Verdict{Kind: Retry, Err: errDown, NotStarted: true}
		}, fmt.Sprint("k", i), uint64(i+1))
	}
	synctest.Wait()
}

// With forward: giveback or drop no message was ever let in while the route probed: it stayed so for ever, giving all
// back, or worse.
func TestRoute_regressionItFindsAProbeWithoutAStash(t *testing.T) {
	for _, forward := range []supervisor.Forward{supervisor.ForwardGiveBack, supervisor.ForwardDrop} {
		t.Run(string(forward), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(8)}, Forward: forward}})
				b.redeliver = false
				tripAway(b, 8)
				time.Sleep(time.Second)
				b.send(takes(time.Second), "a", 10)
				b.send(succeed, "b", 11) // one probe is enough
				time.Sleep(2 * time.Second)
				b.wantFinal(10, AckMessage)
				if forward == supervisor.ForwardDrop {
					b.wantStarts(11)
				}
				b.send(succeed, "b", 12)
				synctest.Wait()
				b.wantFinal(12, AckMessage)
				b.close()
			})
		})
	}
}

func TestRoute_oneProbeAndTheRestRamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8, Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(8)}}})
		tripAway(b, 8)
		for s := uint64(100); s < 150; s++ {
			b.send(takes(time.Second), fmt.Sprint("x", s), s)
		}
		time.Sleep(30 * time.Second)
		at := map[time.Duration]int{}
		for _, s := range b.allStarts()[8:] {
			at[s.at-200*time.Millisecond]++
		}
		if got := fmt.Sprint(at[0], at[time.Second], at[2*time.Second], at[3*time.Second]); got != "1 2 8 8" {
			t.Errorf("starts by second: %s", got)
		}
		b.close()
	})
}

// The first failure while a route recovered gave it all its slots at once.
func TestRoute_regressionAFailureBeginsTheRampAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 16, Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(8)}}})
		tripAway(b, 8)
		b.send(succeed, "first", 99)
		for s := uint64(100); s < 150; s++ {
			h := takes(time.Second)
			if s == 100 {
				h = failing
			}
			b.send(h, fmt.Sprint("x", s), s)
		}
		time.Sleep(250 * time.Millisecond)
		if n := b.g.Status().Running; n != 2 {
			t.Errorf("%d slots right after a failure", n)
		}
		b.close()
	})
}

func TestRoute_probesWithAChildOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 2, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(3)}, MaxChildren: 1}}
		newFamily(&opts)
		b := newBench(t, opts)
		for i := range uint64(50) {
			b.send(first(1, failing, succeed), fmt.Sprint("k", i%10), i+1)
			if i%5 == 4 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		time.Sleep(3 * time.Hour)
		for i := range uint64(50) {
			b.wantFinal(i+1, AckMessage)
		}
		b.close()
	})
}

func TestRoute_waitsOfKeysDifferByTheirJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: 10 * time.Second, Jitter: new(0.2)}}})
		distinct := map[time.Duration]bool{}
		for i := range uint64(20) {
			key := fmt.Sprint("k", i)
			b.send(panicking, key, i+1)
			synctest.Wait()
			for _, d := range b.delays(key) {
				distinct[d] = true
				if d < 8*time.Second || d > 12*time.Second {
					t.Errorf("wait of %v", d)
				}
			}
		}
		if len(distinct) < 15 {
			t.Errorf("%d distinct waits of 20", len(distinct))
		}
		b.close()
	})
}
