package supervise

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func newTestEvidence(of int) *evidence {
	e := newEvidence(supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: &of}}.WithDefaults())
	return &e
}

func TestEvidence_tripsWhenNearlyAllOfTheLastOnesFailed(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		what  string
		ends  string // + a success, - a failure, of keys in turn
		keys  int
		trips bool
	}{
		{"all of them", "----------", 5, true},
		{"one too few", "---------", 5, false},
		{"a success among them", "-----+----", 5, false},
		{"two", "-+---+----", 5, false},
		{"of two keys only", "----------", 2, false},
		{"after many successes", "++++++++++----------", 5, true},
	} {
		e, trips := newTestEvidence(10), false
		for i, end := range tt.ends {
			if end == '+' {
				e.succeeded("good", now)
			} else {
				trips = e.fails(fmt.Sprint("k", i%tt.keys), now)
			}
		}
		if trips != tt.trips {
			t.Errorf("%s: trips %v", tt.what, trips)
		}
	}
}

func TestEvidence_forgetsWhatIsOlderThanTheWindow(t *testing.T) {
	e, now := newTestEvidence(10), time.Now()
	for i := range 100 {
		if e.fails(fmt.Sprint("k", i), now.Add(time.Duration(i)*7*time.Second)) {
			t.Fatalf("tripped after %d failures, one each seven seconds", i+1)
		}
	}
}

// However large the share of keys that fail, the route does not trip while successes come as often as before.
func TestEvidence_aSteadyFewSuccessesKeepTheRouteFlowing(t *testing.T) {
	e, now, trips, chance := newTestEvidence(50), time.Now(), 0, rand.New(rand.NewPCG(1, 2))
	e.succeeded("good", now)
	for i := range 100_000 {
		if chance.IntN(100) == 0 {
			e.succeeded("good", now)
		} else if e.fails(fmt.Sprint("bad", i), now) {
			trips++
			e.clear()
		}
	}
	if trips > 5 { // at the beginning, and by chance
		t.Errorf("%d trips with one success in a hundred", trips)
	}
}

// stream delivers what was published to it when the group has room, like a pull loop.
type stream struct {
	b       *bench
	pending []func()
}

func (s *stream) publish(h handlerFunc, key string, seq uint64) {
	s.pending = append(s.pending, func() { s.b.send(h, key, seq) })
}

func (s *stream) deliver(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		room, _ := s.b.g.Free()
		n := min(room.Messages, len(s.pending))
		for _, send := range s.pending[:n] {
			send()
		}
		s.pending = s.pending[n:]
		time.Sleep(10 * time.Millisecond)
	}
}

// The core promise: however many keys fail for ever, a healthy message of a key of its own starts within one probe interval
// and two seconds. With a stash of 50 and 100 failing subjects, five healthy ones were not started in an hour: the stash was
// full of messages that had failed, and only these were asked.
func TestRoute_regressionFailingKeysDoNotWedgeHealthyOnes_large(t *testing.T) {
	large(t)
	for _, stash := range []int{1, 3, 50, 1000} {
		for _, bad := range []int{60, 100, 200} {
			for _, order := range []bool{false, true} {
				t.Run(fmt.Sprintf("stash %d, %d bad ones, ordered %v", stash, bad, order), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := newBench(t, Options{
							StashMessages: stash, MaxAttempts: 1000, Ordered: order, Config: supervisor.Config{Restart: supervisor.Backoff{Max: 2 * time.Second}},
						})
						s := stream{b: b}
						for n := range uint64(bad) {
							s.publish(failing, fmt.Sprint("bad", n), n+1)
						}
						s.deliver(time.Minute)
						for n := range uint64(5) {
							s.publish(succeed, fmt.Sprint("good", n), 1000+n)
						}
						s.deliver(7 * time.Second)
						for n := range uint64(5) {
							b.wantFinal(1000+n, AckMessage)
						}
						s.deliver(10 * time.Minute)
						for n := range uint64(500) { // and then at full speed
							s.publish(takes(10*time.Millisecond), fmt.Sprint("good", n), 2000+n)
						}
						s.deliver(8 * time.Second)
						for n := range uint64(500) {
							b.wantFinal(2000+n, AckMessage)
						}
						b.close()
					})
				})
			}
		}
	}
}

// Sixty keys of one message each stopped a route for half an hour.
func TestRoute_regressionAnAttackerWithNewFailingKeysSlowsNobody_large(t *testing.T) {
	large(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 3})
		b.redeliver = false
		seq, slow := uint64(0), 0
		var sent []uint64
		at := map[uint64]time.Duration{}
		for i := range 12_000 { // two minutes: 100 bad ones a second, and 10 good ones
			seq++
			if i%11 == 10 {
				at[seq] = time.Since(b.began)
				sent = append(sent, seq)
				b.send(succeed, fmt.Sprint("good", i%7), seq)
			} else {
				b.send(failing, fmt.Sprint("bad", i), seq)
			}
			time.Sleep(9 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		for _, s := range sent {
			starts := b.startsOf(s)
			if len(starts) == 0 {
				t.Fatalf("message %d never started", s)
			}
			if starts[0]-at[s] > 20*time.Millisecond {
				slow++
			}
		}
		if slow > len(sent)/100 {
			t.Errorf("%d of %d healthy messages waited for more than 20ms", slow, len(sent))
		}
		b.close()
	})
}

// Handlers that hang until their timeout, for messages that failed before, must leave slots to others.
func TestRetrying_messagesThatHangAgainLeaveHalfOfTheSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 16, Timeout: 30 * time.Second, MaxAttempts: 1000, Retry: supervisor.Backoff{Min: time.Second, Max: time.Second},
			Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0)}})
		hanging := func(ctx context.Context, _ *Message, _ int) Verdict {
			<-ctx.Done()
			return Verdict{Kind: Retry, Err: ctx.Err()}
		}
		for s := range uint64(64) {
			b.send(hanging, fmt.Sprint("bad", s), s+1)
		}
		time.Sleep(5 * time.Minute)
		for s := range uint64(50) {
			b.send(succeed, fmt.Sprint("good", s), 1000+s)
			time.Sleep(2 * time.Second)
			b.wantFinal(1000+s, AckMessage)
		}
		b.close()
	})
}

// A recognised outage raised the threshold for the next one to eight times as many failures.
func TestEvidence_regressionTheNextOutageIsNoticedAsSoon(t *testing.T) {
	e, now := newTestEvidence(50), time.Now()
	for outage := range 5 {
		for range 40 {
			e.succeeded("good", now)
		}
		n := 0
		for !e.fails(fmt.Sprint("k", n), now) {
			n++
		}
		if n > 60 {
			t.Errorf("outage %d: noticed after %d failures", outage+1, n)
		}
		e.clear()
	}
}

// After a probe had succeeded, those of earlier rounds that hung took the two slots of the ramp, and nothing started for a
// whole timeout.
func TestRoute_regressionHangingProbesDoNotStopTheRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Timeout: 30 * time.Second, MaxAttempts: 1000, Config: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(10)}}})
		hanging := func(ctx context.Context, _ *Message, _ int) Verdict {
			<-ctx.Done()
			return Verdict{Kind: Retry, Err: ctx.Err()}
		}
		for s := range uint64(40) {
			b.send(hanging, fmt.Sprint("bad", s), s+1)
		}
		time.Sleep(50 * time.Second) // they have failed, and rounds of probes hang
		for s := range uint64(200) {
			b.send(succeed, fmt.Sprint("good", s), 1000+s)
		}
		time.Sleep(8 * time.Second)
		for s := range uint64(200) {
			b.wantFinal(1000+s, AckMessage)
		}
		b.close()
	})
}

// Retries that had to wait for others filled the window, and nothing was pulled.
func TestRetrying_regressionThoseThatWaitDoNotFillTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 16, Timeout: 30 * time.Second, MaxAttempts: 1000, Retry: supervisor.Backoff{Min: time.Second, Max: time.Second},
			Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0)}})
		hanging := func(ctx context.Context, _ *Message, _ int) Verdict {
			<-ctx.Done()
			return Verdict{Kind: Retry, Err: ctx.Err()}
		}
		s := stream{b: b}
		for n := range uint64(200) {
			s.publish(hanging, fmt.Sprint("bad", n), n+1)
		}
		s.deliver(20 * time.Minute) // each has hung once
		for n := range uint64(50) {
			s.publish(succeed, fmt.Sprint("good", n), 1000+n)
		}
		s.deliver(40 * time.Second)
		for n := range uint64(50) {
			b.wantFinal(1000+n, AckMessage)
		}
		b.close()
	})
}

// Keys that could start nothing used up the turns of those that could.
func TestRetrying_regressionKeysThatWaitAreNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 2, MaxAttempts: 2, Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0)}})
		b.g.turn.slots.retries.failed = 1
		slowly := func(context.Context, *Message, int) Verdict { time.Sleep(time.Second); return failed }
		for s, key := range []string{"a", "b", "c", "d"} {
			m := &Message{Key: key, Sequence: uint64(s + 1), Attempts: 1}
			b.add(m, slowly)
			b.g.Deliver(m)
		}
		synctest.Wait()
		b.g.SuspendKey("b", "test")
		b.g.SuspendKey("c", "test")
		time.Sleep(10 * time.Second)
		b.wantFinal(1, DeadLetter)
		b.wantFinal(4, DeadLetter)
		b.close()
	})
}
