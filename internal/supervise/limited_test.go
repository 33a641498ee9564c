package supervise

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/internal/limit"
)

// gauge counts what runs at once.
type gauge struct {
	mu       sync.Mutex
	now, max int
	ran      map[string]int
}

func (g *gauge) handler(name string, takes time.Duration) handlerFunc {
	return func(ctx context.Context, _ *Message, _ int) Verdict {
		g.mu.Lock()
		g.now++
		g.max = max(g.max, g.now)
		if g.ran == nil {
			g.ran = make(map[string]int)
		}
		g.ran[name]++
		g.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(takes):
		}
		g.mu.Lock()
		g.now--
		g.mu.Unlock()
		return Verdict{Kind: Ack}
	}
}

func (g *gauge) of(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ran[name]
}

// Two routes of many keys share a limit of 4: never more run at once, the limit is used fully, and each route has its part,
// also the one that came later.
func TestLimits_sharedByRoutesAndFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		four := book.Set("four", limit.Bounds{Places: 4})
		need := []limit.Need{{Limit: four}}
		var ran gauge
		a := newBench(t, Options{Concurrency: 16, Limits: &Limits{Book: book, Name: "a", Always: need}})
		defer a.close()
		b := newBench(t, Options{Concurrency: 16, Limits: &Limits{Book: book, Name: "b", Always: need}})
		defer b.close()
		for i := range 200 {
			a.send(ran.handler("a", 10*time.Millisecond), fmt.Sprint("k", i%20), uint64(i+1))
		}
		time.Sleep(50 * time.Millisecond)
		for i := range 200 {
			b.send(ran.handler("b", 10*time.Millisecond), fmt.Sprint("k", i%20), uint64(i+1))
		}
		time.Sleep(200*time.Millisecond + time.Millisecond)
		synctest.Wait()
		// 25 rounds of 10 ms, 4 each: 20 alone, then half each.
		if x, y := ran.of("a"), ran.of("b"); x+y < 100 || y < 38 {
			t.Errorf("after 250 ms: %d and %d ran, want over 100 together, half of those since b began", x, y)
		}
		if s := b.g.Status(); len(s.Limited) != 1 || s.Limited[0].Limit != "four" || !s.Limited[0].Shared || s.Limited[0].Held == 0 {
			t.Errorf("status does not say that b waits for the limit: %+v", s.Limited)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if ran.max != 4 || ran.of("a") != 200 || ran.of("b") != 200 {
			t.Errorf("at most %d at once, %d and %d handled; want 4, 200, 200", ran.max, ran.of("a"), ran.of("b"))
		}
		if s := four.Status(); s.Used != 0 || len(s.Waiting) != 0 {
			t.Errorf("places are left taken: %+v", s)
		}
		if s := b.g.Status(); len(s.Limited) != 0 {
			t.Errorf("nothing waits any more: %+v", s.Limited)
		}
	})
}

// One tenant has far more than its limit lets run: another one starts at once, although the first one's messages filled the window.
func TestLimits_perValueKeepNobodyElseWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		tenant := book.Set("tenant", limit.Bounds{Places: 2})
		also := func(w Work) []limit.Need { return []limit.Need{{Limit: tenant, Value: w.(*testWork).m.Key}} }
		var ran gauge
		b := newBench(t, Options{Concurrency: 8, Limits: &Limits{Book: book, Name: "r", Also: also}})
		defer b.close()
		for i := range 16 {
			b.send(ran.handler("big", time.Minute), "big", uint64(i+1))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if room, _ := b.g.Free(); room.Messages == 0 {
			t.Error("the window is full of messages that may not start")
		}
		b.send(ran.handler("small", time.Millisecond), "small", 17)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if ran.of("small") != 1 || ran.of("big") != 2 {
			t.Errorf("%d of small and %d of big ran, want 1 and 2", ran.of("small"), ran.of("big"))
		}
		states := b.g.KeyStates(10)
		if len(states) != 1 || states[0].Key != "big" || states[0].Limit != "tenant[big]" {
			t.Errorf("the key that waits for its limit is not told: %+v", states)
		}
	})
}

// A rate is kept for a second and for any other time, its burst included, and used fully; so is what
// somebody permits for a time, which nobody can raise, and after that the rate again: at its time, or when an operator ends it.
func TestLimits_rateAndWhatSlowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		l := book.Set("rate", limit.Bounds{Rate: 100, Burst: 5})
		var ran gauge
		b := newBench(t, Options{Concurrency: 8, Timeout: time.Hour, Limits: &Limits{Book: book, Name: "r", Always: []limit.Need{{Limit: l}}}})
		defer b.close()
		for i := range 2000 {
			b.send(ran.handler("r", 0), fmt.Sprint("k", i%7), uint64(i+1))
		}
		counts := func(d time.Duration) int {
			before := ran.of("r")
			time.Sleep(d)
			synctest.Wait()
			return ran.of("r") - before
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := ran.of("r"); n < 103 || n > 105 {
			t.Errorf("%d in the first second, want 100 and the burst of 5", n)
		}
		if n := counts(5 * time.Second); n < 498 || n > 501 {
			t.Errorf("%d in the next 5 seconds, want 500", n)
		}
		l.Slow(10, time.Now().Add(3*time.Second), "the endpoint says so")
		l.Slow(40, time.Now().Add(time.Minute), "another answer of the same time")
		if n := counts(3*time.Second - 1); n != 10 {
			t.Errorf("%d in 3 seconds in which 10 were permitted", n)
		}
		l.Slow(0, time.Now().Add(2*time.Second), "stop")
		l.Slow(50, time.Now().Add(time.Minute), "too early: a stop stays")
		if n := counts(2*time.Second - 1); n > 1 {
			t.Errorf("%d while nothing may start", n)
		}
		if n := counts(time.Second); n < 98 || n > 106 {
			t.Errorf("%d in the second after that, want the rate and the burst", n)
		}
		l.Slow(1000, time.Now().Add(time.Hour), "more than the rate")
		if n := counts(time.Second); n < 99 || n > 101 {
			t.Errorf("%d in a second: the rate holds", n)
		}
		l.Slow(0, time.Now().Add(time.Hour), "stop")
		if n := counts(time.Minute); n != 0 {
			t.Errorf("%d while nothing may start", n)
		}
		l.EndSlow()
		if n := counts(time.Second); n < 98 || n > 106 {
			t.Errorf("%d in the second after the end, want the rate and the burst", n)
		}
	})
}

// A limit that had room for one is raised to four while all its messages are of one key: three more start at once. The key was asked
// once only, and stood in no line any more.
func TestLimits_regressionAKeyUsesAllTheRoomOfALargerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		l := book.Set("one", limit.Bounds{Places: 1})
		var ran gauge
		b := newBench(t, Options{Concurrency: 16, Limits: &Limits{Book: book, Name: "r", Always: []limit.Need{{Limit: l}}}})
		defer b.close()
		for i := range 20 {
			b.send(ran.handler("r", time.Second), "key", uint64(i+1))
		}
		time.Sleep(500 * time.Millisecond)
		l.Bound(limit.Bounds{Places: 4})
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		if n := ran.of("r"); n != 4 {
			t.Errorf("%d have started, want 4", n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ran.max != 4 || ran.of("r") != 20 {
			t.Errorf("%d ran, at most %d at once; want 20 and 4", ran.of("r"), ran.max)
		}
	})
}

// Keys that wait for room of their own value lose their messages, because the stash is full, and are forgotten: nothing of them is left
// behind, however many values a publisher makes up.
func TestLimits_regressionAForgottenKeyLeavesNoQueueBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		one := book.Set("one", limit.Bounds{Places: 1})
		also := func(w Work) []limit.Need { return []limit.Need{{Limit: one, Value: w.(*testWork).m.Key}} }
		var ran gauge
		b := newBench(t, Options{Concurrency: 8, StashMessages: 4, Limits: &Limits{Book: book, Name: "r", Also: also}})
		b.redeliver = false
		defer b.close()
		for i := range uint64(100) {
			b.send(ran.handler("r", time.Second), fmt.Sprint("k", i), 2*i+1, 2*i+2)
			time.Sleep(50 * time.Millisecond)
			b.g.Free() // as the pull loop asks: a full window goes to the stash
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		turn := b.g.lock()
		evicted, keys, waiting := turn.counts.Evicted, len(turn.keys), len(turn.limits.waiting)
		turn.unlock()
		if evicted == 0 || keys > 0 || waiting > 0 {
			t.Errorf("%d were given back, %d keys and %d queues are left; want some, and none", evicted, keys, waiting)
		}
	})
}

// A route that probes finds the limit of all its messages full: the one key that it asks waits, and no other is looked at; when
// there is room, the route goes on.
func TestLimits_regressionAProbingRouteParksOneKeyOfAFullLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		gate := book.Set("gate", limit.Bounds{Places: 1})
		need := []limit.Need{{Limit: gate}}
		other := book.Places(&limit.Member{Name: "other", Offer: func(*limit.Bucket) bool { return false }}, need...)
		defer other.Drop()
		var ran gauge
		b := newBench(t, Options{Concurrency: 64, Limits: &Limits{Book: book, Name: "r", Always: need}})
		defer b.close()
		if full, _ := other.Take(time.Now()); full != nil {
			t.Fatal("the limit is full")
		}
		turn := b.g.lock()
		turn.route.state = &routeProbing{number: 1}
		turn.unlock()
		for i := range 50 {
			b.send(ran.handler("r", time.Millisecond), fmt.Sprint("k", i), uint64(i+1))
		}
		turn = b.g.lock()
		parked := 0
		for _, p := range turn.limits.waiting {
			parked += p.keys.len()
		}
		before := parked
		turn.startAll()
		for _, p := range turn.limits.waiting {
			parked += p.keys.len()
		}
		turn.unlock()
		if parked-2*before > 1 {
			t.Errorf("one look for a probe parked %d keys, want 1 at most", parked-2*before)
		}
		for _, bucket := range other.Free(nil) {
			bucket.Pass()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := ran.of("r"); n != 50 {
			t.Errorf("%d of 50 were handled once there was room", n)
		}
	})
}

// A group that ends leaves nothing in its limits, whatever runs and waits when it ends: a route that is changed begins anew each time.
func TestLimits_regressionAGroupThatEndedLeavesNoSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		l := book.Set("one", limit.Bounds{Places: 1})
		need := []limit.Need{{Limit: l}}
		for _, limits := range []*Limits{
			{Book: book, Name: "common", Always: need},
			{Book: book, Name: "also", Always: need, Also: func(Work) []limit.Need { return nil }},
		} {
			var ran gauge
			b := newBench(t, Options{Concurrency: 8, Limits: limits})
			for i := range 20 {
				b.send(ran.handler("r", time.Hour), fmt.Sprint("k", i), uint64(i+1))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			b.close()
			if s := l.Status(); s.Used > 0 || len(s.Holders) > 0 || len(s.Waiting) > 0 {
				t.Errorf("%s: left behind: %+v", limits.Name, s)
			}
		}
	})
}

// A route that needs two limits, each of which another route uses up alone, started 1 of 20 in a minute.
func TestLimits_regressionARouteOfTwoLimitsDoesNotStarve_large(t *testing.T) {
	large(t)
	for name, bounds := range map[string]limit.Bounds{"1 place": {Places: 1}, "20 places": {Places: 20}, "20 a second": {Rate: 20, Burst: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				book := limit.NewBook()
				gpu, bank := limit.Need{Limit: book.Set("gpu", bounds)}, limit.Need{Limit: book.Set("bank", bounds)}
				var ran gauge
				var benches []*bench
				for name, needs := range map[string][]limit.Need{"x": {gpu}, "y": {bank}, "z": {gpu, bank}} {
					b := newBench(t, Options{Limits: &Limits{Book: book, Name: name, Always: needs}})
					benches = append(benches, b)
					for i := range 2000 {
						b.send(ran.handler(name, 10*time.Millisecond), fmt.Sprint("k", i), uint64(i+1))
					}
				}
				time.Sleep(5 * time.Second)
				if x, y, z := ran.of("x"), ran.of("y"), ran.of("z"); z < (x+y)/2/10 || z < 15 {
					t.Errorf("x ran %d, y %d, z %d", x, y, z)
				}
				for _, b := range benches {
					b.close()
				}
			})
		})
	}
}

// Messages of a key that follow each other do not take each place that becomes free: other keys wait for one, too.
func TestLimits_aBacklogOfOneKeyDoesNotOvertakeOthersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		var ran gauge
		b := newBench(t, Options{Limits: &Limits{Book: book, Name: "x", Always: []limit.Need{{Limit: book.Set("one", limit.Bounds{Places: 1})}}}})
		for i := range 500 {
			b.send(ran.handler("first", 10*time.Millisecond), "first", uint64(i+1))
		}
		for i := range 10 {
			b.send(ran.handler("other", 10*time.Millisecond), fmt.Sprint("other ", i), uint64(1000+i))
		}
		time.Sleep(300 * time.Millisecond)
		if n := ran.of("other"); n != 10 {
			t.Errorf("%d of 10 others ran", n)
		}
		b.close()
	})
}

// Fifty messages of values of their own waited for 19 s behind bad ones of other values that fail slowly. What was in the stash when the route began to
// flow stayed there, because of the limit, and had its turn behind all that was there before.
func TestLimits_regressionHealthyMessagesOfOtherValuesBehindManyBadOnes_large(t *testing.T) {
	large(t)
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		per := book.Set("per", limit.Bounds{Places: 1})
		also := func(w Work) []limit.Need { return []limit.Need{{Limit: per, Value: w.(*testWork).m.Key}} }
		b := newBench(t, Options{Concurrency: 16, MaxAttempts: 1000, Limits: &Limits{Book: book, Name: "r", Also: also}})
		s := stream{b: b}
		for n := range uint64(5000) {
			s.publish(func(context.Context, *Message, int) Verdict {
				time.Sleep(300 * time.Millisecond)
				return failed
			}, fmt.Sprint("bad", n), n+1)
		}
		for n := range uint64(50) {
			s.publish(takes(5*time.Millisecond), fmt.Sprint("good", n), 10_000+n)
		}
		s.deliver(6 * time.Second)
		for n := range uint64(50) {
			b.wantFinal(10_000+n, AckMessage)
		}
		b.close()
	})
}

// What is aside for the bucket of a value was not called back while messages of keys that wait filled the stash, and all later ones of that value went
// aside behind it: they waited for minutes, with room in the bucket and every slot free.
func TestLimits_regressionAFullStashOfOthersKeepsNobodyAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := limit.NewBook()
		per := book.Set("per", limit.Bounds{Places: 4})
		also := func(w Work) []limit.Need { return []limit.Need{{Limit: per, Value: w.(*testWork).m.Key[:3]}} }
		b := newBench(t, Options{Concurrency: 8, StashMessages: 100, MaxAttempts: 1000, Limits: &Limits{Book: book, Name: "r", Also: also}})
		s := stream{b: b}
		for n := range uint64(1000) {
			s.publish(func(context.Context, *Message, int) Verdict { panic("bad") }, fmt.Sprint("bad", n%20), n+1)
		}
		s.deliver(20 * time.Second) // the keys wait, and their messages fill the stash
		for n := range uint64(100) {
			s.publish(takes(100*time.Millisecond), fmt.Sprint("good", n), 2000+n)
		}
		s.deliver(8 * time.Second) // the limit lets 40 a second run
		for n := range uint64(100) {
			b.wantFinal(2000+n, AckMessage)
		}
		b.close()
	})
}
