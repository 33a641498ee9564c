package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/supervisor"
)

// Messages that cannot start must not stand in the way of those that can. A storm is many of the first kind, on keys of their own,
// before, among and after the others.
type storm struct {
	slots, stash int
	bad          int // keys, with per messages each
	per          int
	hangs        int // of a hundred bad ones
	timeout      time.Duration
	order        supervisor.Order
	forward      supervisor.Forward
	good         int
	every        time.Duration // one good message
	burst        bool          // the bad ones come at once; else they are spread over the good ones
	before       time.Duration // how long they are alone
}

func (c storm) route(h HandlerFunc) Route {
	r := Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Concurrency: c.slots, Timeout: c.timeout, Order: c.order,
		Handler: h,
	}
	r.Stash.Messages = c.stash
	r.Supervisor.Forward = c.forward
	return r
}

// stormResult is how the good messages fared.
type stormResult struct {
	waits  []time.Duration // from the publish to the start, in the order of the publishes; -1: not started
	first  time.Duration   // from the first publish of a good one to the first start
	starts int             // of bad ones, until the last good one was published
}

// after is the longest wait of those that were published after the first success, but for a share of them.
func (r stormResult) after(share float64) time.Duration {
	var list []time.Duration
	for _, w := range r.waits[1:] {
		if w < 0 {
			w = time.Hour
		}
		list = append(list, w)
	}
	slices.Sort(list)
	return list[int(float64(len(list)-1)*share)]
}

func (c storm) run(t *testing.T, patience time.Duration) stormResult {
	t.Helper()
	w := newWorld(t)
	c.per = max(1, c.per)
	var mu sync.Mutex
	started := map[string]time.Time{}
	var bad atomic.Int64
	handle := func(ctx context.Context, m *Msg) error {
		if id, is := strings.CutPrefix(m.Subject, "orders.good."); is {
			mu.Lock()
			if _, was := started[id]; !was {
				started[id] = time.Now()
			}
			mu.Unlock()
			return nil
		}
		bad.Add(1)
		n := 0
		_, _ = fmt.Sscanf(m.Subject, "orders.bad.%d", &n)
		if n*37%100 < c.hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		return errors.New("status 500")
	}
	publish := func(subject string) {
		if _, err := w.js.PublishMsgAsync(&nats.Msg{Subject: subject}, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Error(err)
		}
	}
	w.start(Config{Logger: quiet}, c.route(handle))
	total, sent := c.bad*c.per, 0
	for ; c.burst && sent < total; sent++ {
		publish(fmt.Sprint("orders.bad.", sent%c.bad))
	}
	time.Sleep(c.before)
	at := make([]time.Time, c.good)
	for i := range at {
		for ; sent < total*(i+1)/c.good; sent++ {
			publish(fmt.Sprint("orders.bad.", sent%c.bad))
		}
		at[i] = time.Now()
		publish(fmt.Sprint("orders.good.", i))
		time.Sleep(c.every)
	}
	res := stormResult{starts: int(bad.Load())}
	last := time.Now().Add(patience)
	for {
		mu.Lock()
		n := len(started)
		mu.Unlock()
		if n == c.good || time.Now().After(last) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	var first time.Time
	for _, s := range started {
		if first.IsZero() || s.Before(first) {
			first = s
		}
	}
	res.first = first.Sub(at[0])
	for i := range at {
		wait := time.Duration(-1)
		if s, ok := started[fmt.Sprint(i)]; ok {
			wait = s.Sub(laterOf(at[i], first)) // what came before the first success waits for that
		}
		res.waits = append(res.waits, wait)
	}
	return res
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c storm) String() string {
	return fmt.Sprintf("%d slots, stash %d, %d×%d bad, %d %% hang for %v, %s, %s, burst %v, %d good", c.slots, c.stash, c.bad, max(1, c.per), c.hangs, c.timeout, c.order, c.forward, c.burst, c.good)
}

// Of 2,000 keys with one message each that was answered 500, none of 100 healthy messages behind them started in a minute.
func TestPast_regressionHealthyMessagesGetPastBadOnes_timed(t *testing.T) {
	timed(t)
	none, key := supervisor.Order("none"), supervisor.OrderKey
	for _, tt := range []struct {
		storm
		first, then time.Duration
	}{
		{storm{slots: 64, stash: 1000, bad: 2000, order: none, good: 30, every: 100 * time.Millisecond, burst: true}, 15 * time.Second, time.Second},
		{storm{slots: 64, stash: 1000, bad: 2000, order: key, good: 30, every: 100 * time.Millisecond, burst: true}, 15 * time.Second, time.Second},
		{storm{slots: 64, stash: 1000, bad: 10_000, order: none, good: 30, every: 100 * time.Millisecond, burst: true, before: 2 * time.Second}, 30 * time.Second, time.Second},
		{storm{slots: 64, stash: 1000, bad: 4000, order: none, good: 50, every: 100 * time.Millisecond, burst: false}, 15 * time.Second, time.Second},
		{storm{slots: 16, stash: 100, bad: 400, per: 2, hangs: 10, timeout: time.Second, order: none, good: 50, every: 50 * time.Millisecond, burst: true}, 15 * time.Second, 2 * time.Second},
		{storm{slots: 16, stash: 10, bad: 30, hangs: 30, timeout: time.Second, order: none, good: 50, every: 50 * time.Millisecond, burst: true}, 10 * time.Second, 2 * time.Second},
		{storm{slots: 4, stash: 10, bad: 400, order: key, good: 50, every: 50 * time.Millisecond, burst: true}, 15 * time.Second, 2 * time.Second},
		{storm{slots: 64, stash: 50, bad: 120, order: none, forward: supervisor.ForwardGiveBack, good: 50, every: 50 * time.Millisecond, burst: true}, 10 * time.Second, 2 * time.Second},
		{storm{slots: 4, stash: 1000, bad: 6000, per: 2, order: none, forward: supervisor.ForwardGiveBack, good: 50, every: 50 * time.Millisecond, burst: true}, 15 * time.Second, 2 * time.Second},
		{storm{slots: 1, stash: 10, bad: 200, order: none, good: 30, every: 50 * time.Millisecond, burst: true}, 15 * time.Second, 2 * time.Second},
	} {
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			res := tt.run(t, tt.first+20*time.Second)
			t.Logf("the first after %v, the others: half within %v, 99 %% within %v, all within %v; %d starts of bad ones",
				res.first.Round(time.Millisecond), res.after(0.5).Round(time.Millisecond), res.after(0.99).Round(time.Millisecond), res.after(1).Round(time.Millisecond), res.starts)
			if res.first > tt.first || res.first < 0 || res.after(1) > tt.then*patienceFactor {
				t.Errorf("the first after %v, the slowest of the others after %v", res.first, res.after(1))
			}
		})
	}
}

// Random storms: the bound is the one that design.md promises.
func TestPast_randomStorms_timed(t *testing.T) {
	timed(t)
	pick := func(list ...int) int { return list[rand.IntN(len(list))] }
	for range 3 {
		c := storm{
			slots: pick(1, 2, 4, 8, 16, 32, 64), stash: pick(10, 30, 100, 1000), bad: pick(10, 60, 300, 1500), per: pick(1, 1, 2, 3), hangs: pick(0, 0, 5, 20),
			timeout: 500 * time.Millisecond, order: "none", good: 40, every: 50 * time.Millisecond, burst: pick(0, 1) == 0,
			before: time.Duration(pick(0, 0, 3)) * time.Second,
		}
		if pick(0, 0, 1) == 1 {
			c.order = supervisor.OrderKey
		}
		if pick(0, 0, 1) == 1 {
			c.forward = supervisor.ForwardGiveBack
		}
		if c.slots < 8 {
			c.hangs = 0 // what hangs takes all of few slots
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			res := c.run(t, 60*time.Second)
			bound := 7*time.Second + time.Duration(float64(c.bad*max(1, c.per))/100*float64(time.Second))
			// Nobody can know what hangs for the first time: each key has a slot for its timeout once.
			unknown := time.Duration(c.bad*c.hangs/100) * c.timeout / time.Duration(c.slots)
			if res.first > bound || res.first < 0 || res.after(0.95) > unknown+patienceFactor*3*time.Second {
				t.Errorf("the first after %v, 95 %% of the others within %v, the slowest %v", res.first, res.after(0.95), res.after(1))
			}
		})
	}
}

// patienceFactor is for a machine that does something else beside.
const patienceFactor = 2

// What an outage held up was handled by timers, the last of it minutes after the endpoint was well again.
func TestPast_regressionStormsEnd_timed(t *testing.T) {
	timed(t)
	for _, tt := range []struct {
		what   string
		down   error
		keys   int
		length time.Duration
		order  supervisor.Order
		stash  int
		most   int // starts
	}{
		{"an answer that is a failure", errors.New("status 503"), 3000, 8 * time.Second, "none", 1000, 50 + 3100},
		{"no answer", NoAnswer(errors.New("connection refused")), 20_000, 5 * time.Second, "none", 1000, 200 + 12},
		{"ordered", errors.New("status 503"), 2000, 5 * time.Second, supervisor.OrderKey, 100, 50 + 2000},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var down atomic.Bool
			down.Store(true)
			var starts, spent, done atomic.Int64
			r := storm{slots: 64, stash: tt.stash, order: tt.order}.route(func(_ context.Context, m *Msg) error {
				if down.Load() {
					starts.Add(1)
					return tt.down
				}
				if m.Attempt > 2 {
					spent.Add(1)
				}
				done.Add(1)
				return nil
			})
			rl, _ := w.start(Config{Logger: quiet}, r)
			for i := range tt.keys {
				if _, err := w.js.PublishMsgAsync(&nats.Msg{Subject: fmt.Sprint("orders.", i)}, jetstream.WithStallWait(time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(tt.length)
			asked := starts.Load()
			s := rl.engine.Routes.All()[0].Group.Status()
			t.Logf("down for %v: %d starts, %d aside, %d in the stash, %v: %s", tt.length, asked, s.Aside, s.StashMessages, s.State, s.Why)
			began := time.Now()
			down.Store(false)
			w.eventually("all is handled", func() bool { return int(done.Load()) >= tt.keys })
			took := time.Since(began)
			t.Logf("all were handled %v after the end", took.Round(time.Millisecond))
			if took > patienceFactor*10*time.Second || int(asked) > tt.most+tt.most/4 || spent.Load() > 0 {
				t.Errorf("%d starts while it was down, all handled %v after; %d had spent attempts", asked, took, spent.Load())
			}
		})
	}
}

// Messages that hang until their timeout, five a second of new keys, took so many slots with their retries that healthy ones waited for
// seconds.
func TestPast_regressionHangingMessagesLeaveSlots_timed(t *testing.T) {
	timed(t)
	w := newWorld(t)
	var mu sync.Mutex
	var waits []time.Duration
	published := map[string]time.Time{}
	w.start(Config{Logger: quiet}, storm{slots: 16, stash: 1000, timeout: 5 * time.Second}.route(func(ctx context.Context, m *Msg) error {
		if strings.HasPrefix(m.Subject, "orders.bad.") {
			<-ctx.Done()
			return ctx.Err()
		}
		mu.Lock()
		waits = append(waits, time.Since(published[m.Subject]))
		mu.Unlock()
		return nil
	}))
	good := 0
	for i := range 300 { // a quarter of a minute
		if i%8 == 0 { // 2.5 a second
			w.publish(fmt.Sprint("orders.bad.", i), 1)
		}
		subject := fmt.Sprint("orders.good.", i)
		mu.Lock()
		published[subject] = time.Now()
		mu.Unlock()
		w.publish(subject, 1)
		good++
		time.Sleep(50 * time.Millisecond)
	}
	w.eventually("all healthy ones are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(waits) == good })
	slices.Sort(waits)
	p99 := waits[len(waits)*99/100]
	t.Logf("half within %v, 99 %% within %v, the slowest %v", waits[good/2], p99, waits[good-1])
	if p99 > patienceFactor*250*time.Millisecond {
		t.Errorf("99 %% of the healthy messages were started within %v", p99)
	}
}

// While only ten keys had messages, the first ten waited for three seconds and more until the fallback had them: they had left for the
// delay of their retry before anybody knew of an outage.
func TestPast_regressionTheFallbackHasTheFirstMessagesSoon_timed(t *testing.T) {
	timed(t)
	for _, every := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(every.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var mu sync.Mutex
			published, took := map[string]time.Time{}, map[string]time.Duration{}
			r := storm{slots: 64, stash: 1000}.route(func(context.Context, *Msg) error { return errors.New("status 503") })
			r.Fallback = &Fallback{Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
				mu.Lock()
				defer mu.Unlock()
				took[string(m.Data)] = time.Since(published[string(m.Data)])
				return nil
			})}
			w.start(Config{Logger: quiet}, r)
			const messages = 40
			for i := range messages {
				id := fmt.Sprint(i)
				mu.Lock()
				published[id] = time.Now()
				mu.Unlock()
				if _, err := w.js.Publish(t.Context(), fmt.Sprint("orders.", i%10), []byte(id)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(every)
			}
			w.eventually("the fallback had all", func() bool { mu.Lock(); defer mu.Unlock(); return len(took) == messages })
			slowest := time.Duration(0)
			for _, d := range took {
				slowest = max(slowest, d)
			}
			t.Logf("the slowest took %v", slowest)
			if slowest > patienceFactor*2*time.Second {
				t.Errorf("the slowest took %v", slowest)
			}
		})
	}
}
