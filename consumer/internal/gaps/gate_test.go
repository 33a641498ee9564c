package gaps

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/internal/pool"
)

// A delivery is its consumer sequence, stream sequence and count.
func (t *gate) got(consumer, sequence, deliveries uint64) (above uint64, held bool) {
	now := time.Now()
	t.delivered(sequence, consumer, deliveries, now)
	above, until := t.open(now)
	return above, now.Before(until)
}

func TestGate(t *testing.T) {
	const wait = 30 * time.Second
	type step struct {
		consumer, sequence, deliveries uint64
		held                           bool
		above                          uint64
		event                          bool
		after                          time.Duration
	}
	for name, tc := range map[string]struct {
		pending int // of an earlier life, between 2 and 5
		steps   []step
	}{
		"nothing is missing": {steps: []step{{consumer: 10, sequence: 6, deliveries: 1}, {consumer: 11, sequence: 9, deliveries: 1}}},
		"an earlier life": {pending: 2, steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1, held: true, above: 2},
			{consumer: 11, sequence: 4, deliveries: 2, held: true, above: 2},
			{consumer: 12, sequence: 4, deliveries: 3, held: true, above: 2}, // the same
			{consumer: 13, sequence: 3, deliveries: 2},
		}},
		"an earlier life whose deliveries others have": {pending: 2, steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1, held: true, above: 2},
			{consumer: 11, sequence: 7, deliveries: 1, after: wait + gateSlack},
		}},
		"two are lost": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 13, sequence: 12, deliveries: 1, held: true, above: 6},
			{consumer: 14, sequence: 13, deliveries: 1, held: true, above: 6},
			{consumer: 15, sequence: 5, deliveries: 2, held: true, above: 6}, // another one
			{consumer: 16, sequence: 8, deliveries: 2, held: true, above: 6},
			{consumer: 17, sequence: 9, deliveries: 2},
		}},
		"two are lost, and what comes next is a redelivery": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 13, sequence: 7, deliveries: 2, held: true, above: 6},
			{consumer: 14, sequence: 8, deliveries: 2},
		}},
		"one is lost, and lost again": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 12, sequence: 8, deliveries: 1, held: true, above: 6},
			{consumer: 14, sequence: 9, deliveries: 1, held: true, above: 6},
			{consumer: 15, sequence: 7, deliveries: 3, held: true, above: 8}, // the second gap stays
			{consumer: 16, sequence: 10, deliveries: 1, after: wait + gateSlack},
		}},
		"a server that was killed forgot some": {steps: []step{
			{consumer: 10, sequence: 6, deliveries: 1},
			{consumer: 8, sequence: 5, deliveries: 1},
			{consumer: 9, sequence: 6, deliveries: 1},
			{consumer: 10, sequence: 7, deliveries: 1},
		}},
		"others take deliveries": {steps: []step{
			{consumer: 20, sequence: 6, deliveries: 1, held: true, above: 5},
			{consumer: 21, sequence: 16, deliveries: 1, after: wait + gateSlack},
			{consumer: 30, sequence: 26, deliveries: 1},                                     // known
			{consumer: 40, sequence: 36, deliveries: 1, event: true, held: true, above: 26}, // it may be that, or a loss
			{consumer: 41, sequence: 37, deliveries: 1, after: wait + gateSlack},
			{consumer: 50, sequence: 46, deliveries: 1},
			{consumer: 51, sequence: 47, deliveries: 1, after: time.Hour},
			{consumer: 60, sequence: 56, deliveries: 1, after: time.Second}, // they are there still
		}},
		"gaps of others that follow the first one": {steps: []step{
			{consumer: 20, sequence: 6, deliveries: 1, held: true, above: 5},
			{consumer: 30, sequence: 16, deliveries: 1, after: wait, held: true, above: 5},
			{consumer: 40, sequence: 26, deliveries: 1, after: gateSlack}, // only the first one was waited for
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g gate
				g.begin(9, 2, 5, tc.pending, wait, time.Now())
				for _, s := range tc.steps {
					time.Sleep(s.after)
					g.open(time.Now())
					if s.event {
						g.mayHaveLost(time.Now())
					}
					if above, held := g.got(s.consumer, s.sequence, s.deliveries); held != s.held || above != s.above {
						t.Errorf("after delivery %d: held %v, above %d; want %v, %d", s.consumer, held, above, s.held, s.above)
					}
				}
			})
		})
	}
}

// What is missing came slowly, because the stash was full of what waited for it; the time was over before all of it was there.
func TestGate_regressionTheTimeIsProlongedWhileMissingOnesCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.begin(9, 5, 5, 0, 30*time.Second, time.Now())
		g.got(110, 106, 1) // 6 to 105 are lost
		time.Sleep(30 * time.Second)
		for n := range uint64(99) {
			if above, held := g.got(111+n, 6+n, 2); !held || above != 5 {
				t.Fatalf("after %d of 100 missing ones: held %v, above %d", n+1, held, above)
			}
			if n := g.coming(time.Now()); n == 0 {
				t.Fatal("there is no room for those that are missing")
			}
			time.Sleep(time.Second)
		}
		if _, held := g.got(210, 105, 2); held {
			t.Error("all of them came, and others are held")
		}
	})
}

// Several cuts within one AckWait: the word that the connection is a new one came after its first delivery, or before the last
// one of the old connection. The gap was then taken for deliveries of other instances, and later gaps for nothing.
func TestGate_regressionAnEventAndItsGapHaveNoOrder(t *testing.T) {
	for name, steps := range map[string]func(g *gate){
		"the word comes after the gap": func(g *gate) {
			g.got(20, 16, 1)
			g.mayHaveLost(time.Now())
		},
		"the word comes before the last delivery of the old connection": func(g *gate) {
			g.mayHaveLost(time.Now())
			g.got(10, 6, 1)
			g.got(20, 16, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g gate
				g.begin(9, 5, 5, 0, 30*time.Second, time.Now())
				steps(&g)
				time.Sleep(time.Minute)
				g.open(time.Now())
				if g.shared {
					t.Error("a lost delivery is taken for another instance")
				}
			})
		})
	}
}

// While what came again was looked up at the server, the time was over, and later messages overtook it.
func TestGate_regressionNothingIsLetGoBeforeWhatCameAgainIsWithItsRoute(t *testing.T) {
	behind := pool.New(1)
	w := NewWatch(slog.New(slog.DiscardHandler), behind, func(Hold) {})
	now := time.Unix(0, 0)
	w.Begin(Start{Consumer: 9, AckFloor: 5, Delivered: 5, AckWait: 30 * time.Second}, now)
	w.Delivered(7, 11, 1, now)
	if w.told.hold.Above != 5 {
		t.Fatalf("held above %d", w.told.hold.Above)
	}
	answer := make(chan struct{})
	behind.Go(func() { <-answer })
	now = now.Add(31 * time.Second)
	if !w.Delivered(6, 12, 2, now) {
		t.Fatal("the gap is not filled")
	}
	w.Hold(now)
	w.told.mu.Lock()
	if now = now.Add(10 * time.Hour); w.told.hold.Above != 5 || w.told.hold.over(now) {
		t.Errorf("held: %+v", w.told.hold)
	}
	w.told.mu.Unlock()
	close(answer)
	behind.Wait()
	if !w.told.hold.over(now) {
		t.Error("held for ever")
	}
}

// Two instances share an ordered durable with a message every two minutes: a minute without a gap was taken for proof of being
// alone, although nothing came in it, and each message after one of the other instance waited for AckWait and two seconds.
func TestGate_regressionLittleTrafficOnTwoInstancesWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.begin(9, 5, 5, 0, 30*time.Second, time.Now())
		consumer, waits := uint64(9), 0
		for range 100 { // the others take one, this instance takes two
			for range 2 {
				time.Sleep(2 * time.Minute)
				g.open(time.Now())
				consumer++
				if _, held := g.got(consumer, consumer, 1); held {
					waits++
				}
			}
			consumer++
		}
		if waits != 1 {
			t.Errorf("%d messages waited, want the first one", waits)
		}
	})
}

// A burst that the other instances had no room for says nothing; a minute of deliveries without a gap does.
func TestGate_isAloneAfterManyDeliveriesInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.begin(9, 5, 5, 0, 30*time.Second, time.Now())
		g.got(20, 20, 1)
		time.Sleep(32 * time.Second)
		consumer := uint64(20)
		run := func(n int, every time.Duration) (held bool) {
			g.open(time.Now())
			for range n {
				time.Sleep(every)
				consumer++
				g.got(consumer, consumer, 1)
			}
			consumer += 2
			_, held = g.got(consumer, consumer, 1)
			return held
		}
		if run(1000, time.Millisecond) {
			t.Error("after a burst the instance takes itself to be alone")
		}
		if !run(70, time.Second) {
			t.Error("after 70 deliveries in a row, one a second, the instance does not take itself to be alone")
		}
	})
}

// Before it is known that there are other instances, each of their deliveries is a gap.
func TestGate_regressionGapsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.begin(9, 5, 5, 0, 30*time.Second, time.Now())
		for i := range uint64(1000) {
			time.Sleep(10 * time.Millisecond)
			if above, held := g.got(11+2*i, 11+2*i, 1); !held || above != 5 {
				t.Fatalf("delivery %d: held %v, above %d", i, held, above)
			}
		}
		if len(g.gaps) > maxGaps {
			t.Errorf("%d gaps are kept", len(g.gaps))
		}
		missing := 0
		for _, p := range g.gaps {
			missing += p.missing
		}
		if missing != 1000 {
			t.Errorf("%d deliveries are missing, want 1000", missing)
		}
	})
}

// Each gap that other instances made was a warning.
func TestGate_regressionAHoldIsOneLine(t *testing.T) {
	var log bytes.Buffer
	w := NewWatch(slog.New(slog.NewTextHandler(&log, nil)), pool.New(1), func(Hold) {})
	now := time.Unix(0, 0)
	w.Begin(Start{Consumer: 9, AckFloor: 5, Delivered: 5, AckWait: 30 * time.Second}, now)
	for i := range uint64(10) {
		now = now.Add(time.Second)
		w.Delivered(11+2*i, 11+2*i, 1, now)
	}
	now = now.Add(time.Minute)
	w.Delivered(41, 41, 1, now)
	if n := strings.Count(log.String(), "deliveries are missing"); n != 1 {
		t.Errorf("%d warnings of one hold", n)
	}
	if n := strings.Count(log.String(), "another instance or program receives messages"); n != 1 {
		t.Errorf("%d lines say that there are other instances", n)
	}
}
