package supervise

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func TestSlots_aKeyHasHalfWhileOthersHaveMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8})
		b.send(succeed, "other", 1000)
		synctest.Wait()
		b.send(takes(time.Second), "k", seq(1, 50)...)
		synctest.Wait()
		if n := b.g.Status().Running; n != 4 {
			t.Errorf("%d of 8 slots", n)
		}
		b.close()
	})
}

func TestSlots_aKeyAloneHasThemAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8})
		b.send(takes(time.Second), "k", seq(1, 50)...)
		synctest.Wait()
		if n := b.g.Status().Running; n != 8 {
			t.Errorf("%d of 8 slots", n)
		}
		b.close()
	})
}

func TestSlots_aKeyWithFailuresHasOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8, Config: supervisor.Config{TripAfter: new(0)}})
		b.send(failing, "k", 1)
		synctest.Wait()
		b.send(takes(200*time.Millisecond), "k", seq(2, 50)...)
		synctest.Wait()
		if n := b.g.Status().Running; n != 1 {
			t.Errorf("%d slots", n)
		}
		b.close()
	})
}

// The other key may have been quiet for long: a key that had the route to itself, and whose handlers then hang, must have
// left one slot.
func TestSlots_aHangingKeyDoesNotDelayAHealthyOne(t *testing.T) {
	for _, quiet := range []time.Duration{time.Second, time.Hour} {
		t.Run(quiet.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Concurrency: 8, Timeout: 30 * time.Second})
				b.send(succeed, "healthy", 10_000)
				time.Sleep(quiet)
				next, healthy := uint64(1), uint64(10_001)
				for range 120 { // two minutes, the pull loop looks twice a second
					time.Sleep(500 * time.Millisecond)
					if room, _ := b.g.Free(); room.Messages > 0 {
						n := uint64(room.Messages)
						b.send(obeying, "k", seq(next, next+n-1)...)
						next += n
					}
					sent := time.Since(b.began)
					b.send(succeed, "healthy", healthy)
					time.Sleep(500 * time.Millisecond)
					if at := b.startsOf(healthy); len(at) == 0 || at[0]-sent > 2*time.Second {
						t.Fatalf("sent at %v, started at %v", sent, at)
					}
					healthy++
				}
				b.close()
			})
		})
	}
}

func TestSlots_aStalledKeyDoesNotFillTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8, Timeout: 30 * time.Second})
		b.send(succeed, "healthy", 10_000)
		room, _ := b.g.Free()
		n := room.Messages
		b.send(obeying, "k", seq(1, uint64(n)+1)...)
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if room, flows := b.g.Free(); room.Messages < 8 || !flows {
			t.Errorf("room for %+v more, flows %v", room, flows)
		}
		b.close()
	})
}

func TestSlots_freshAndDueAlternate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1})
		b.send(takes(time.Second), "x", 1)
		synctest.Wait()
		for s := uint64(2); s <= 7; s++ {
			m := &Message{Key: fmt.Sprint("due", s), Sequence: s, Returns: 1}
			b.add(m, takes(time.Second))
			b.g.Deliver(m)
		}
		for s := uint64(12); s <= 17; s++ {
			b.send(takes(time.Second), fmt.Sprint("fresh", s), s)
		}
		time.Sleep(time.Minute)
		order := b.order()[1:]
		for i := 2; i < len(order); i++ {
			if (order[i] > 10) != (order[i-2] > 10) || (order[i] > 10) == (order[i-1] > 10) {
				t.Fatalf("started %v", order)
			}
		}
		b.close()
	})
}

// Each had half of the slots before it began to hang, which together was all of them.
func TestSlots_regressionTwoHangingKeysDoNotDelayAHealthyOne(t *testing.T) {
	for _, concurrency := range []int{8, 64} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Concurrency: concurrency, Timeout: 30 * time.Second})
				b.send(succeed, "healthy", 10_000)
				b.send(succeed, "a", 1)
				b.send(succeed, "b", 2)
				synctest.Wait()
				next, healthy := uint64(3), uint64(10_001)
				for range 120 {
					time.Sleep(500 * time.Millisecond)
					room, _ := b.g.Free()
					for n := range room.Messages {
						b.send(obeying, []string{"a", "b"}[n%2], next)
						next++
					}
					sent := time.Since(b.began)
					b.send(succeed, "healthy", healthy)
					time.Sleep(500 * time.Millisecond)
					if at := b.startsOf(healthy); len(at) == 0 || at[0]-sent > 2*time.Second {
						t.Fatalf("sent at %v, started at %v", sent, at)
					}
					healthy++
				}
				b.close()
			})
		})
	}
}

func TestSlots_theLastOnesAreForKeysThatHaveNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8})
		b.send(takes(time.Second), "a", seq(1, 4)...)
		b.send(takes(time.Minute), "b", seq(11, 13)...)
		b.send(succeed, "b", 14)
		synctest.Wait()
		b.wantStarts(14) // the last slot is not for b, which may have half of them
		b.send(takes(time.Minute), "c", 20)
		synctest.Wait()
		b.wantStarts(20, 0)
		// Slots that another key frees are b's, although none of its own runs ends.
		time.Sleep(1100 * time.Millisecond)
		b.wantStarts(14, time.Second)
		time.Sleep(time.Hour)
		b.close()
	})
}

// Large messages fill the window by their bytes.
func TestSlots_largeMessagesOfAStalledKeyDoNotFillTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 16, Timeout: 30 * time.Second})
		b.send(succeed, "healthy", 10_000)
		synctest.Wait()
		before, _ := b.g.Free()
		for s := uint64(1); s <= 24; s++ {
			m := &Message{Key: "k", Sequence: s, Size: 1 << 20}
			b.add(m, obeying)
			b.g.Deliver(m)
		}
		if room, _ := b.g.Free(); before.Bytes != MaxWindowBytes || room.Bytes != 0 || room.Messages == 0 {
			t.Errorf("room for %+v, then %+v", before, room)
		}
		time.Sleep(2 * time.Second)
		if room, flows := b.g.Free(); room.Bytes != MaxWindowBytes || !flows {
			t.Errorf("room for %+v once the key has stalled, flows %v", room, flows)
		}
		b.close()
	})
}
