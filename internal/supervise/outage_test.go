package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// SINCE was the time of the last probe, and WHY "its wait is over", however long the outage lasted.
func TestStatus_regressionSinceIsTheBeginningOfTheTroubleAndWhyItsLastFailure(t *testing.T) {
	for what, opts := range map[string]Options{
		"key":   {Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: time.Second, Max: 4 * time.Second}}},
		"route": {Config: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(4)}, Restart: supervisor.Backoff{Min: time.Second, Max: 4 * time.Second}}},
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

// What of an ordered key went back while the route was in doubt came minutes after the endpoint was well: its key waited, or its own delay was not over,
// when it was to be called back, and nobody asked again. So outages of any kind end for all messages within seconds.
func TestOutage_regressionItEndsForAllMessages_large(t *testing.T) {
	large(t)
	kinds := map[string]Verdict{
		"answer":  {Kind: Retry, Err: errDown},
		"silence": {Kind: Retry, Err: errDown, NoAnswer: true},
		"dead":    {Kind: Dead, Err: errDown},
	}
	names := slices.Sorted(maps.Keys(kinds))
	names = append(names, "hangs")
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 31))
		pick := func(list ...int) int { return list[r.IntN(len(list))] }
		kind, last := names[r.IntN(len(names))], names[r.IntN(len(names))]
		long := time.Duration(2000+r.IntN(28_000)) * time.Millisecond
		change := long * time.Duration(r.IntN(3)) / 3
		paused := r.IntN(4) == 0
		keys, per := pick(100, 200, 500), pick(1, 2, 3)
		most := pick(2, 600)
		forward := []supervisor.Forward{forwardStash, supervisor.ForwardGiveBack}[r.IntN(2)]
		opts := Options{
			Concurrency: pick(1, 2, 8, 32, 64), StashMessages: pick(10, 50, 300, 1000), Ordered: r.IntN(3) > 0, Timeout: time.Second,
			Retry:  supervisor.Backoff{Min: 200 * time.Millisecond, Max: time.Duration(most) * time.Second},
			Config: supervisor.Config{Forward: forward, RouteTrip: supervisor.RouteTrip{Of: new(pick(10, 20, 50))}},
		}
		what := fmt.Sprintf("%d: %s then %s for %v, %d x %d messages, %d slots, stash %d, ordered %v, %v, of %d, retry.max %d s, paused %v", seed, kind, last, long, keys, per,
			opts.Concurrency, opts.StashMessages, opts.Ordered, forward, *opts.Config.RouteTrip.Of, most, paused)
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, opts)
				var is atomic.Value
				is.Store(kind)
				asked := atomic.Int64{}
				handle := func(ctx context.Context, _ *Message, _ int) Verdict {
					switch v := is.Load().(string); v {
					case "well":
						return ok
					case "hangs":
						asked.Add(1)
						<-ctx.Done()
						return Verdict{Kind: Retry, Err: ctx.Err()}
					default:
						asked.Add(1)
						return kinds[v]
					}
				}
				s := stream{b: b}
				for i := range keys * per {
					s.publish(handle, fmt.Sprint("k", i%keys), uint64(i+1))
				}
				s.deliver(change)
				is.Store(last)
				s.deliver((long - change) / 2)
				if paused {
					b.g.Pause()
				}
				s.deliver((long - change) / 2)
				is.Store("well")
				if paused {
					b.g.Resume()
				}
				if kind == "silence" && last == kind && !paused {
					if n, most := int(asked.Load()), *opts.Config.RouteTrip.Of+opts.Concurrency+5+int(2*long.Seconds()); n > most {
						t.Errorf("%d were asked, want ≤ %d", n, most)
					}
				}
				s.deliver(12 * time.Second)
				left := 0
				for i := range keys * per {
					if o, ended := b.final(uint64(i + 1)); !ended && (o.Action != RetryLater || !o.Due.After(time.Now())) {
						left++
					}
				}
				if left > 0 {
					t.Errorf("%d of %d were not handled", left, keys*per)
				}
				b.close()
			})
		})
	}
}
