package supervisor

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var guarded = Config{DeadTrip: DeadTrip{Of: new(50)}}

func deadly(context.Context, *Message, int) Verdict { return Verdict{Kind: Dead, Err: errDown} }

func (b *bench) deadLetters() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, os := range b.outcomes {
		for _, o := range os {
			if o.Action == DeadLetter {
				n++
			}
		}
	}
	return n
}

func TestFlood_needsNearlyAllOverThreeKeys(t *testing.T) {
	config := guarded.WithDefaults()
	for _, tt := range []struct {
		what       string
		keys, dead int // of each ten completions
		want       bool
	}{
		{"all dead, of many keys", 10, 10, true},
		{"all dead, of three keys", 3, 10, true},
		{"all dead, of two keys", 2, 10, false},
		{"nine of ten dead", 10, 9, true},
		{"eight of ten dead", 10, 8, false},
	} {
		f := newFlood(config)
		trips := false
		for i := range 1000 {
			how := Ack
			if i%10 < tt.dead {
				how = Dead
			}
			trips = f.ended(fmt.Sprint(i%tt.keys), how) || trips
		}
		if trips != tt.want {
			t.Errorf("%s: suspended %v, want %v", tt.what, trips, tt.want)
		}
	}
}

// An endpoint that answers everything with dead, as one does that was replaced by an error page, costs no more than 50 dead
// letters, whatever arrives and however many are in flight. Its messages are all handled when it works again.
func TestFlood_aBrokenEndpointCostsAtMostFiftyDeadLetters(t *testing.T) {
	for _, order := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Concurrency: 200, Ordered: order, Config: guarded})
				healthy := false
				endpoint := func(ctx context.Context, m *Message, n int) Verdict {
					time.Sleep(time.Second) // all are in flight before the first one is answered
					b.mu.Lock()
					defer b.mu.Unlock()
					if healthy {
						return ok
					}
					return Verdict{Kind: Dead, Err: errDown}
				}
				for i := range 1000 {
					b.send(endpoint, fmt.Sprint("key ", i), uint64(i+1))
				}
				time.Sleep(time.Hour)
				s := b.g.Status()
				if n := b.deadLetters(); n > 50 || n < 45 || s.State != Suspended {
					t.Errorf("%d dead letters, the route is %v: %s", n, s.State, s.Why)
				}
				if _, flows := b.g.Free(); flows {
					t.Error("a suspended route asks for messages")
				}
				// Trials change nothing as long as the endpoint is broken.
				before := b.deadLetters()
				for range 3 {
					starts := len(b.allStarts())
					if was := b.g.EndWaits(Trial); was.Route != Suspended {
						t.Errorf("it was %v", was.Route)
					}
					time.Sleep(time.Hour)
					if n := len(b.allStarts()) - starts; n != 1 || b.g.Status().State != Suspended || b.deadLetters() != before {
						t.Errorf("a trial started %d messages, there are %d dead letters, the route is %v", n, b.deadLetters(), b.g.Status().State)
					}
				}
				b.mu.Lock()
				healthy = true
				b.mu.Unlock()
				b.g.EndWaits(Trial)
				time.Sleep(10 * time.Hour)
				if s := b.g.Status(); s.State != Flowing || b.deadLetters() != before {
					t.Errorf("after a good trial the route is %v, with %d dead letters more", s.State, b.deadLetters()-before)
				}
				for i := range 1000 {
					if o, ended := b.final(uint64(i + 1)); !ended {
						t.Errorf("message %d is not done: %+v", i+1, o)
					}
				}
				b.close()
			})
		})
	}
}

func TestFlood_oneBadProducerAmongHealthyKeysSuspendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: guarded})
		for i := range 2000 {
			b.send(deadly, "bad", uint64(2*i+1))
			if i%20 == 0 {
				b.send(succeed, fmt.Sprint("good ", i), uint64(2*i+2))
			}
		}
		time.Sleep(time.Hour)
		if s := b.g.Status(); s.State != Flowing || b.deadLetters() != 2000 {
			t.Errorf("the route is %v, with %d dead letters", s.State, b.deadLetters())
		}
		b.close()
	})
}

func TestFlood_resumeGoesOnAndIsSuspendedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: Config{DeadTrip: DeadTrip{Of: new(10)}}})
		for i := range 100 {
			b.send(deadly, fmt.Sprint("key ", i), uint64(i+1))
		}
		time.Sleep(time.Minute)
		first := b.deadLetters()
		b.g.EndWaits(AtOnce)
		time.Sleep(time.Hour)
		if n := b.deadLetters() - first; first > 10 || n == 0 || n > 10 || b.g.Status().State != Suspended {
			t.Errorf("%d dead letters, and %d after it was resumed; the route is %v", first, n, b.g.Status().State)
		}
		b.close()
	})
}

// A trial that took more than two seconds, or that failed, was over, and the next one was none: its dead letters were believed, and
// the route flowed for as many more as dead_trip takes. What arrived meanwhile was dropped under forward: drop.
func TestFlood_regressionATrialIsBelievedOnlyWhenItSucceeds(t *testing.T) {
	for what, trial := range map[string]handlerFunc{
		"takes long":      func(context.Context, *Message, int) Verdict { time.Sleep(3 * time.Second); return Verdict{Kind: Dead} },
		"fails":           failing,
		"panics":          panicking,
		"hangs":           obeying,
		"ignores its end": func(context.Context, *Message, int) Verdict { time.Sleep(time.Minute); return ok },
		"names a time":    retryAfter(time.Minute),
		"is dead after 50ms": func(context.Context, *Message, int) Verdict {
			time.Sleep(50 * time.Millisecond)
			return Verdict{Kind: Dead}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{
					Timeout: 10 * time.Second,
					Config:  Config{DeadTrip: DeadTrip{Of: new(10)}, Forward: ForwardDrop, RetryAfter: ScopeRoute},
				})
				b.redeliver = false
				for i := range uint64(10) {
					b.send(deadly, fmt.Sprint("key ", i), i+1)
				}
				synctest.Wait()
				if s := b.g.Status(); s.State != Suspended {
					t.Fatalf("the route is %v", s.State)
				}
				before := b.deadLetters()
				b.g.EndWaits(Trial)
				b.send(trial, "trial", 100)
				b.send(deadly, "early", 101)
				for i := range uint64(300) {
					time.Sleep(time.Second)
					b.send(deadly, fmt.Sprint("later ", i), 200+i)
				}
				if n := b.deadLetters() - before; n > 0 || b.g.Status().State != Suspended {
					t.Errorf("%d dead letters, the route is %v", n, b.g.Status().State)
				}
				if n := len(b.allStarts()) - 10; n > 3 { // the first one, once more, and one that is dead
					t.Errorf("%d messages were tried", n)
				}
				for _, seq := range append(seq(200, 499), 101) {
					if o, ended := b.final(seq); ended {
						t.Errorf("message %d: %+v", seq, o)
						break
					}
				}
				b.close()
			})
		})
	}
}

// A handler that ran since before the suspension is not the trial, and its dead was believed.
func TestFlood_regressionAnOldRunIsNotTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Timeout: time.Hour, Config: Config{DeadTrip: DeadTrip{Of: new(10)}}})
		b.send(first(1, func(context.Context, *Message, int) Verdict { time.Sleep(30 * time.Second); return Verdict{Kind: Dead} }, succeed), "old", 100)
		for i := range uint64(10) {
			b.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		time.Sleep(20 * time.Second)
		b.g.EndWaits(Trial)
		b.send(takes(20*time.Second), "trial", 101)
		time.Sleep(15 * time.Second)
		if s := b.g.Status(); s.State != Probing {
			t.Errorf("the route is %v: %s", s.State, s.Why)
		}
		time.Sleep(time.Minute)
		b.wantFinal(101, AckMessage)
		b.wantFinal(100, AckMessage)
		if s := b.g.Status(); s.State != Flowing {
			t.Errorf("the route is %v: %s", s.State, s.Why)
		}
		b.close()
	})
}

func TestFlood_endWaitsAtOnceEndsATrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: Config{DeadTrip: DeadTrip{Of: new(10)}}})
		b.redeliver = false
		for i := range uint64(10) {
			b.send(deadly, fmt.Sprint("key ", i), i+1)
		}
		synctest.Wait()
		b.g.EndWaits(Trial)
		b.g.EndWaits(AtOnce)
		b.send(deadly, "k", 100)
		synctest.Wait()
		b.wantFinal(100, DeadLetter)
		b.close()
	})
}
