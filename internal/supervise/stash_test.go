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

// The bench checks the bounds of the stash at each start, settlement and event of every test.

func TestStash_theKeyIdleLongestGivesItsOldestBackFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{StashMessages: 4})
		b.redeliver = false
		for i, key := range []string{"a", "b"} {
			b.send(panicking, key, 100+uint64(i))
		}
		synctest.Wait() // both wait
		b.send(succeed, "a", 1, 2)
		time.Sleep(time.Millisecond)
		b.send(succeed, "b", 3, 4)
		time.Sleep(time.Millisecond)
		b.send(succeed, "a", 5) // now b is idle longest
		synctest.Wait()
		for seq := uint64(1); seq <= 5; seq++ {
			o, _ := b.final(seq)
			if out := len(b.outcomes[seq]) > 0; out != (seq == 3) || out && o.Action != GiveBack {
				t.Errorf("message %d was given back: %v", seq, out)
			}
		}
		if s := b.g.Status(); s.StashMessages != 4 || s.StashBytes != 400 || s.Counts.Evicted != 1 {
			t.Errorf("status %+v", s)
		}
		b.close()
	})
}

func TestStash_evictedMessagesAreHandledInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{StashMessages: 10, StashBytes: 700, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}}})
		var down atomic.Bool
		down.Store(true)
		for k := range uint64(5) {
			b.send(func(context.Context, *Message, int) Verdict {
				if down.Load() {
					return failed
				}
				return ok
			}, fmt.Sprint("k", k), seq(1+k*100, 100+k*100)...)
		}
		time.Sleep(time.Hour)
		down.Store(false)
		time.Sleep(2 * time.Hour)
		for s := range uint64(500) {
			b.wantFinal(s+1, AckMessage)
		}
		if b.g.Status().Counts.Evicted == 0 {
			t.Error("nothing was evicted")
		}
		b.close()
	})
}

func TestAside_staysAwayLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		k := &key{name: "k", state: new(flowing)}
		now := time.Now()
		overflow := func(m *Message) time.Duration {
			turn := b.g.lock()
			defer turn.unlock()
			return turn.aside.until(m, turn.route.waitOf(k)).Sub(turn.now)
		}
		turn := b.g.lock()
		turn.aside.all = make(map[asideID]*absentee)
		for n := range uint64(40_000) {
			turn.aside.all[asideID{sequence: n}] = &absentee{}
		}
		turn.unlock()
		most := 40_000 * time.Second / asideRate // 400 s
		for returns, want := range map[int]time.Duration{
			-1: asideFor, 0: asideFor, 1: 2 * asideFor, 3: 8 * asideFor, 4: most, 1000: most,
		} {
			for range 100 {
				if d := overflow(&Message{Returns: returns}); d < want/2 || d > want*3/2 {
					t.Errorf("after %d returns: %v, want %v, half each way", returns, d, want)
				}
			}
		}
		k.state = &waiting{end: now.Add(time.Hour)}
		if d := overflow(&Message{}); d < time.Hour/2 {
			t.Errorf("%v, and its key waits for 1h", d)
		}
		if few, all := asideMostOf(10), asideMostOf(1_000_000); few != asideFor || all != asideMost {
			t.Errorf("at most %v of ten, %v of a million", few, all)
		}
		turn = b.g.lock()
		clear(turn.aside.all)
		turn.unlock()
		b.close()
	})
}

// What a route that waits has no room for goes aside, so that what is behind it comes. When as much is aside as it keeps in mind, it asks
// for no more than it could ask with.
func TestAside_aRouteThatWaitsAsksForMoreUntilManyAreAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 4, StashMessages: 10, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(8)}}})
		b.redeliver = false
		tripAway(b, 8)
		for n := range uint64(maxAside + 20) {
			if room, flows := b.g.Free(); len(b.g.turn.aside.all) < maxAside && room.Messages < 100 || flows {
				t.Fatalf("free %+v, flows %v, after %d messages", room, flows, n)
			}
			b.send(succeed, fmt.Sprint("x", n), 100+n)
			b.mu.Lock()
			b.outcomes = map[uint64][]Outcome{}
			b.mu.Unlock()
		}
		if room, _ := b.g.Free(); room.Messages > 0 {
			t.Errorf("free %+v, with %d aside", room, len(b.g.turn.aside.all))
		}
		b.close()
	})
}

func TestStash_anEarlyMessageIsHeldOrGivenBackForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.redeliver = false
		for i, early := range []time.Duration{time.Second, time.Minute} {
			m := &Message{Key: "k", Sequence: uint64(i + 1), Attempts: 1, Due: time.Now().Add(early)}
			b.add(m, succeed)
			b.g.Deliver(m)
		}
		time.Sleep(10 * time.Second)
		b.wantStarts(1, time.Second)
		b.wantStarts(2)
		if o := b.wantLast(2, GiveBack); !o.Due.Equal(b.began.Add(time.Minute)) || o.Attempts != 1 {
			t.Errorf("outcome %+v", o)
		}
		b.close()
	})
}

// A key of which the last message was evicted was remembered until that came again: for ever, if it went to another
// instance.
func TestStash_regressionKeysWhoseMessagesWereEvictedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 4, StashMessages: 10, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(3)}}})
		b.redeliver = false
		for i := range uint64(1000) {
			b.send(failing, fmt.Sprint("k", i), i)
		}
		time.Sleep(24 * time.Hour)
		if n := b.keys(); n > 20 {
			t.Errorf("%d keys are remembered", n)
		}
		b.close()
	})
}

// It stays within the bounds by going away itself: all others were given back before it was.
func TestStash_regressionAMessageLargerThanTheStashLeavesTheOthersThere(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{StashBytes: 1000, Ordered: ordered})
				b.send(first(1, panicking, succeed), "a", 1)
				b.send(first(1, panicking, succeed), "b", 2)
				synctest.Wait() // both wait
				b.send(succeed, "a", 3, 4, 5)
				huge := &Message{Key: "b", Sequence: 6, Size: 1001}
				b.mu.Lock()
				b.add(huge, succeed)
				b.mu.Unlock()
				b.g.Deliver(huge)
				b.wantLast(6, GiveBack)
				if s := b.g.Status(); s.Counts.Evicted != 1 || s.StashMessages < 3 {
					t.Errorf("status %+v", s)
				}
				time.Sleep(time.Hour)
				for s := range uint64(6) {
					b.wantFinal(s+1, AckMessage)
				}
				b.close()
			})
		})
	}
}
