package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// Fifty healthy messages behind 20,000 bad ones waited for minutes when the handler is slow to fail, or fails in several ways: each success
// let the route flow, and then what had waited was tried from its oldest message on. Messages that came back by themselves filled the window
// besides. With order: key one or two of them were handled within a minute: what was put aside was called back at once, from the oldest on,
// and took the place of the newest.
func TestWary_regressionHealthyMessagesBehindManyBadOnes_large(t *testing.T) {
	large(t)
	err := errors.New("bad")
	slowly := func(v Verdict) func(context.Context) Verdict {
		return func(context.Context) Verdict {
			time.Sleep(300 * time.Millisecond)
			return v
		}
	}
	hangs := func(ctx context.Context) Verdict {
		<-ctx.Done()
		return Verdict{Kind: Retry, Err: ctx.Err()}
	}
	var calls atomic.Int32
	inTurn := func(ways ...func(context.Context) Verdict) func(context.Context) Verdict {
		return func(ctx context.Context) Verdict { return ways[int(calls.Add(1))%len(ways)](ctx) }
	}
	at := func(v Verdict) func(context.Context) Verdict { return func(context.Context) Verdict { return v } }
	fails, dead, mute := Verdict{Kind: Retry, Err: err}, Verdict{Kind: Dead, Err: err}, Verdict{Kind: Retry, NoAnswer: true, Err: err}
	for name, shape := range map[string]struct {
		bad         func(context.Context) Verdict
		concurrency int
		timeout     time.Duration
		within      time.Duration // all healthy messages are handled
		each        uint64        // messages of a key; 0: one, and in no order
	}{
		"at once":                   {at(fails), 4, time.Minute, 2 * time.Second, 0},
		"slowly":                    {slowly(fails), 8, time.Minute, 14 * time.Second, 0},
		"slowly, many at once":      {slowly(fails), 64, time.Minute, 3 * time.Second, 0},
		"slowly, dead":              {slowly(dead), 8, time.Minute, 14 * time.Second, 0},
		"slowly, no answer":         {slowly(mute), 8, time.Minute, 14 * time.Second, 0},
		"hangs":                     {hangs, 64, time.Second, 6 * time.Second, 0},
		"hangs, few at once":        {hangs, 8, time.Second, 40 * time.Second, 0},
		"some hang":                 {inTurn(hangs, at(fails), at(fails), at(fails)), 64, 2 * time.Second, 2 * time.Second, 0},
		"in several ways":           {inTurn(hangs, at(fails), at(dead), at(mute)), 64, 2 * time.Second, 6 * time.Second, 0},
		"in order, at once":         {at(fails), 4, time.Minute, 2 * time.Second, 1},
		"in order, slowly":          {slowly(fails), 8, time.Minute, 14 * time.Second, 1},
		"in order, three each":      {slowly(fails), 8, time.Minute, 60 * time.Second, 3},
		"in order, slowly, dead":    {slowly(dead), 8, time.Minute, 18 * time.Second, 1},
		"in order, in several ways": {inTurn(hangs, at(fails), at(dead), at(mute)), 64, 2 * time.Second, 6 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Concurrency: shape.concurrency, Timeout: shape.timeout, MaxAttempts: 1000, Ordered: shape.each > 0})
				const bad, good = 20_000, 50
				each := max(1, shape.each)
				s := stream{b: b}
				for n := range uint64(bad) {
					s.publish(func(ctx context.Context, _ *Message, _ int) Verdict { return shape.bad(ctx) }, fmt.Sprint("bad", n/each), n+1)
				}
				var mu sync.Mutex
				var handled []time.Duration
				for n := range uint64(good) {
					s.publish(func(context.Context, *Message, int) Verdict {
						mu.Lock()
						defer mu.Unlock()
						handled = append(handled, time.Since(b.began))
						return Verdict{Kind: Ack}
					}, fmt.Sprint("good", n/each), bad+n+1)
				}
				s.deliver(shape.within)
				mu.Lock()
				if n := len(handled); n < good {
					t.Errorf("%d of %d healthy messages were handled within %v", n, good, shape.within)
				} else {
					t.Logf("the last healthy message was handled after %v", slices.Max(handled))
				}
				mu.Unlock()
				b.close()
			})
		})
	}
}

// What came back by itself while nearly all failed was put into the window, whatever was there already.
func TestWary_regressionWhatComesBackByItselfKeepsTheBoundOfTheWindow_large(t *testing.T) {
	large(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 8})
		s := stream{b: b}
		for n := range uint64(20_000) {
			s.publish(func(context.Context, *Message, int) Verdict {
				time.Sleep(300 * time.Millisecond)
				if n%500 == 0 {
					return Verdict{Kind: Ack} // so that the route flows
				}
				return failed
			}, fmt.Sprint("key", n), n+1)
		}
		for range 80 {
			s.deliver(time.Second)
			if n := b.g.Status().Window; n > MaxWindow {
				t.Fatalf("%d messages are in the window after %v", n, time.Since(b.began))
			}
		}
		b.close()
	})
}

// While nobody answers, a route whose forward is giveback never asked a message that had just come: the one at hand was always an old one, which came
// back by itself or was called, or one of a key that failed.
func TestWary_regressionTheNewestIsAskedWhereNothingIsStashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Concurrency: 64, Timeout: time.Second, MaxAttempts: 1000, Config: supervisor.Config{Forward: supervisor.ForwardGiveBack},
		})
		s := stream{b: b}
		for n := range uint64(1000) {
			s.publish(obeying, fmt.Sprint("bad", n%100), n+1)
		}
		s.deliver(40 * time.Second)
		for n := range uint64(10) {
			s.publish(succeed, fmt.Sprint("good", n), 2000+n)
			s.deliver(time.Second)
		}
		s.deliver(10 * time.Second)
		for n := range uint64(10) {
			b.wantFinal(2000+n, AckMessage)
		}
		b.close()
	})
}

// When a route begins to ask one message at a time, what it has at hand are old ones. They were asked before what was newer and aside, one in two seconds.
func TestWary_regressionTheNewestIsAskedBeforeOlderOnesAtHand_large(t *testing.T) {
	large(t)
	for _, forward := range []supervisor.Forward{supervisor.ForwardGiveBack, forwardStash} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Options{Concurrency: 8, MaxAttempts: 1000, Config: supervisor.Config{Forward: forward}})
			s := stream{b: b}
			const bad, good = 5000, 50
			for n := range uint64(bad) {
				s.publish(func(context.Context, *Message, int) Verdict {
					return Verdict{Kind: Retry, NoAnswer: true, Err: errors.New("connection refused")}
				}, fmt.Sprint("bad", n), n+1)
			}
			for n := range uint64(good) {
				s.publish(succeed, fmt.Sprint("good", n), bad+n+1)
			}
			s.deliver(8 * time.Second)
			for n := range uint64(good) {
				b.wantFinal(bad+n+1, AckMessage)
			}
			b.close()
		})
	}
}

// Ten keys whose handlers hang had 20,000 messages ahead of those of healthy keys. Most slots were free, and yet the healthy ones waited for a minute:
// messages of the ten filled the window, and were taken out of it four times a second only. With order: key each failure counted as if the keys
// went on, and so few messages were pulled at a time: over a link of 20 ms none was handled in 25 s.
func TestWary_regressionHealthyMessagesBehindManyOfFewKeysThatHang_large(t *testing.T) {
	large(t)
	slow := func(context.Context, *Message, int) Verdict {
		time.Sleep(300 * time.Millisecond)
		return failed
	}
	for name, shape := range map[string]struct {
		opts Options
		bad  handlerFunc
	}{
		"hang":                 {Options{Concurrency: 16, Timeout: 4 * time.Second}, obeying},
		"hang, many at once":   {Options{Concurrency: 64, Timeout: 4 * time.Second}, obeying},
		"hang, in order":       {Options{Concurrency: 4, Timeout: 2 * time.Second, StashMessages: 50, Ordered: true}, obeying},
		"fail slowly":          {Options{Concurrency: 8, Timeout: 4 * time.Second}, slow},
		"fail slowly, ordered": {Options{Concurrency: 8, Timeout: 4 * time.Second, Ordered: true}, slow},
		"fail slowly, ordered, giveback": {Options{Concurrency: 4, Timeout: 4 * time.Second, StashMessages: 50, Ordered: true,
			Config: supervisor.Config{Forward: supervisor.ForwardGiveBack}}, slow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shape.opts.MaxAttempts = 1000
				b := newBench(t, shape.opts)
				s := stream{b: b}
				for n := range uint64(20_000) {
					s.publish(shape.bad, fmt.Sprint("bad", n%10), n+1)
				}
				s.deliver(15 * time.Second)
				for n := range uint64(20) {
					s.publish(succeed, fmt.Sprint("good", n), 20_001+n)
					s.deliver(500 * time.Millisecond)
				}
				s.deliver(2 * time.Second)
				for n := range uint64(20) {
					b.wantFinal(20_001+n, AckMessage)
				}
				b.close()
			})
		})
	}
}

// With few slots, which handlers that hang have for seconds, nothing was known to fail until as many had failed as a trip needs: for minutes, the
// oldest message was always next, and few were pulled. Then keys that had failed came before others as the newest, and keys that work had one turn in four.
func TestWary_regressionKeysThatWorkBehindHandlersThatHangInFewSlots_large(t *testing.T) {
	large(t)
	ways := map[string]handlerFunc{
		"hang": obeying,
		"mute": func(context.Context, *Message, int) Verdict {
			return Verdict{Kind: Retry, Err: failed.Err, NoAnswer: true}
		},
		"slow": func(context.Context, *Message, int) Verdict { time.Sleep(300 * time.Millisecond); return failed },
	}
	for name, shape := range map[string]struct {
		opts     Options
		ahead    uint64
		ways     []string
		byKey    bool
		goodKeys uint64
	}{
		"ordered, a way for each key":     {Options{Concurrency: 4, Timeout: 10 * time.Second, StashMessages: 50, Ordered: true}, 300, []string{"mute", "hang", "slow"}, true, 5},
		"ordered, a way for each message": {Options{Concurrency: 4, Timeout: 10 * time.Second, StashMessages: 50, Ordered: true}, 3000, []string{"mute", "slow", "hang"}, false, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shape.opts.MaxAttempts = 5
				b := newBench(t, shape.opts)
				s := stream{b: b}
				seq, calls := uint64(0), atomic.Uint64{}
				bad := func() {
					seq++
					n := seq
					s.publish(func(ctx context.Context, m *Message, number int) Verdict {
						i := calls.Add(1)
						if shape.byKey {
							i = n % 100
						}
						return ways[shape.ways[i%uint64(len(shape.ways))]](ctx, m, number)
					}, fmt.Sprint("bad", n%100), n)
				}
				for range shape.ahead {
					bad()
				}
				var mu sync.Mutex
				var took []time.Duration
				for second := range 100 {
					for range 50 {
						bad()
					}
					if second >= 15 && second < 75 {
						seq++
						at := time.Now()
						s.publish(func(context.Context, *Message, int) Verdict {
							mu.Lock()
							defer mu.Unlock()
							took = append(took, time.Since(at))
							return Verdict{Kind: Ack}
						}, fmt.Sprint("good", seq%shape.goodKeys), seq)
					}
					s.deliver(time.Second)
				}
				mu.Lock()
				if len(took) < 25 { // 0 to 7 before, and 40 to 60 since
					t.Errorf("%d of 60 were handled: %v", len(took), took)
				}
				mu.Unlock()
				b.close()
			})
		})
	}
}
