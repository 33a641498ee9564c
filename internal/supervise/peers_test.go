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

// peersBench is a route on several instances, which share a stream.
func peersBench(t *testing.T, instances int, opts Options, tell bool) (all []*bench) {
	for i := range instances {
		o := opts
		if tell {
			o.Hint = func(h Hint) {
				for j, b := range all {
					if j != i {
						b.g.Hear(fmt.Sprint("instance-", i), h)
					}
				}
			}
		}
		all = append(all, newBench(t, o))
	}
	return all
}

func questions(all []*bench) (n int) {
	for _, b := range all {
		n += len(b.allStarts())
	}
	return n
}

func TestPeers_anOutageCostsAsManyQuestionsAsOneInstanceWouldAsk_large(t *testing.T) {
	large(t)
	for _, tt := range []struct {
		name    string
		keys    int
		takes   time.Duration
		verdict Verdict
	}{
		{"many keys, nobody answers", 50, 0, Verdict{Kind: Retry, Err: errDown, NotStarted: true}},
		{"many keys, nobody answers in time", 50, time.Second, Verdict{Kind: Retry, Err: errDown, NoAnswer: true}},
		{"many keys, and questions take longer than one waits for", 50, 10 * time.Second, Verdict{Kind: Retry, Err: errDown, NoAnswer: true}},
		{"many keys, failures are answered", 50, 0, failed},
		{"one key, nobody answers", 1, 0, Verdict{Kind: Retry, Err: errDown, NotStarted: true}},
		{"one key, failures are answered", 1, 0, failed},
		{"three keys", 3, 0, Verdict{Kind: Retry, Err: errDown, NoAnswer: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			outage := func(t *testing.T, instances int, tell bool) (asked int, known time.Duration) {
				synctest.Test(t, func(t *testing.T) {
					var down atomic.Bool
					handle := func(context.Context, *Message, int) Verdict {
						if down.Load() {
							time.Sleep(tt.takes)
							return tt.verdict
						}
						return ok
					}
					all := peersBench(t, instances, Options{MaxAttempts: 1000, Config: supervisor.Config{Restart: supervisor.Backoff{Jitter: new(0.2)}}}, tell)
					n := uint64(0)
					publish := func(d time.Duration) {
						for range int(d / (10 * time.Millisecond)) {
							n++
							all[n%uint64(instances)].send(handle, fmt.Sprint("k", int(n/7)%tt.keys), n)
							time.Sleep(10 * time.Millisecond)
						}
					}
					publish(2 * time.Second)
					down.Store(true)
					if tt.takes > 0 { // until then nobody knows
						publish(tt.takes + 5*time.Second)
					}
					before := questions(all)
					publish(30 * time.Second)
					asked = questions(all) - before
					down.Store(false)
					began := time.Now()
					flows := func(b *bench) bool {
						s := b.g.Status()
						return s.State == Flowing && s.NotFlowing == 0
					}
					// The first one that knows, and the last one.
					first := time.Duration(0)
					for {
						publish(10 * time.Millisecond)
						flowing := 0
						for _, b := range all {
							if flows(b) {
								flowing++
							}
						}
						if flowing > 0 && first == 0 {
							first = time.Since(began)
						}
						if flowing == instances || time.Since(began) > 10*time.Minute {
							break
						}
					}
					known = time.Since(began) - first
					for _, b := range all {
						b.close()
					}
				})
				return asked, known
			}
			one, _ := outage(t, 1, true)
			five, known := outage(t, 5, true)
			alone, later := outage(t, 5, false)
			t.Logf("%d questions of one instance, %d of five, %d of five that do not tell; all know %v after the first, otherwise %v", one, five, alone, known, later)
			if float64(five) > 1.3*float64(one)+20 {
				t.Errorf("%d questions of five instances, one asks %d", five, one)
			}
			if known > time.Second {
				t.Errorf("the last one knows %v after the first", known)
			}
		})
	}
}

// A forged or stale hint must not keep a route from finding out for itself.
func TestPeers_hintsOfLiarsPutOffAQuestionForAMinuteAtMost(t *testing.T) {
	for _, keys := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Options{MaxAttempts: 1000, Hint: func(Hint) {}})
			var down atomic.Bool
			down.Store(true)
			handle := func(context.Context, *Message, int) Verdict {
				if down.Load() {
					return Verdict{Kind: Retry, Err: errDown, NotStarted: true}
				}
				return ok
			}
			for i := range uint64(60) {
				b.send(handle, fmt.Sprint("k", int(i)%keys), i+1)
			}
			time.Sleep(5 * time.Second)
			down.Store(false)
			began := time.Now()
			for b.g.Status().State != Flowing || b.g.Status().NotFlowing > 0 {
				b.g.Hear("liar", Hint{Kind: ofWaits, Delay: 100 * time.Hour, Restarts: 1 << 40})
				b.g.Hear("liar", Hint{Kind: ofWaits, Key: []byte("k0"), Delay: 100 * time.Hour, Restarts: 1 << 40})
				b.g.Hear("liar", Hint{Kind: ofAsked, N: 1 << 40})
				b.g.Hear("liar", Hint{Kind: ofAsked, N: 1, Judged: true, Restarts: 1 << 40})
				b.g.Hear("liar", Hint{Kind: "of a newer version", N: 1})
				time.Sleep(100 * time.Millisecond)
				if time.Since(began) > 10*time.Minute {
					t.Fatal("it never asks")
				}
			}
			if took := time.Since(began); took > standByMost+5*time.Second {
				t.Errorf("%d keys: %v", keys, took)
			}
			b.close()
		})
	}
}

// What fails elsewhere, and not here, changes nothing here: the outage may be one of the other's host.
func TestPeers_whoSucceedsGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Hint: func(Hint) {}})
		for i := range uint64(300) {
			b.g.Hear("other", Hint{Kind: ofFailing, N: 100, Keys: []uint32{1, 2, 3}, Mute: true})
			b.g.Hear("other", Hint{Kind: ofWaits, Delay: time.Second, Mute: true})
			b.g.Hear("other", Hint{Kind: ofWaits, Key: []byte("k1"), Delay: time.Second})
			b.send(succeed, fmt.Sprint("k", i%5), i+1)
			time.Sleep(10 * time.Millisecond)
			if n := len(b.allStarts()); n != int(i+1) {
				t.Fatalf("%d starts of %d messages", n, i+1)
			}
		}
		if len(b.events) > 0 {
			t.Errorf("it moved: %+v", b.events)
		}
		b.close()
	})
}

// A bad message here, while others of other keys fail elsewhere, is no outage: keys are counted over all instances, but each once.
func TestPeers_fewKeysThatFailEverywhereTripNoRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := peersBench(t, 3, Options{Retry: supervisor.Backoff{Min: time.Hour, Max: time.Hour}, Config: supervisor.Config{TripAfter: new(0)}}, true)
		for i := range uint64(60) {
			all[i%3].send(failing, fmt.Sprint("k", i%2), i+1)
			time.Sleep(5 * time.Millisecond)
		}
		for _, b := range all {
			if moved := b.moves("route"); len(moved) > 0 {
				t.Errorf("the route moved: %v", moved)
			}
			b.close()
		}
	})
}
