package consumer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/supervisor"
)

// bystanders is a route on which messages come whose callers never answer, and others that ask for nothing.
type bystanders struct {
	w     *world
	rt    *route.Route
	mutes *asker
	mu    sync.Mutex
	asked map[string]int // questions, by message
	waits []time.Duration
	muted atomic.Int64 // of those whose callers never answer, how many were started
}

func (w *world) bystanders(rt Route) *bystanders {
	b := &bystanders{w: w, asked: map[string]int{}}
	rt = permitted(rt)
	rt.Handler = HandlerFunc(func(_ context.Context, m *Msg) error {
		sent, err := strconv.ParseInt(string(m.Data), 10, 64)
		if err != nil {
			b.muted.Add(1)
			return nil
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.waits = append(b.waits, time.Since(time.Unix(0, sent)))
		return nil
	})
	r, _ := w.start(Config{Logger: quiet}, rt)
	b.rt = r.engine.Routes.All()[0]
	b.mutes = w.caller(func(q *nats.Msg) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.asked[q.Header.Get("Relay-Id")]++
	})
	return b
}

// burst publishes that many messages at once whose callers never answer, or that have none, and returns how long the route takes for
// the latter.
func (b *bystanders) burst(n int, h nats.Header) time.Duration {
	b.w.t.Helper()
	began, before := time.Now(), b.muted.Load()
	for i := range n {
		if err := b.w.nc.PublishMsg(&nats.Msg{Subject: fmt.Sprintf("orders.mute.%d", i), Data: []byte("mute"), Header: h}); err != nil {
			b.w.t.Fatal(err)
		}
	}
	if h == nil {
		b.w.eventually("they are handled", func() bool { return b.muted.Load()-before >= int64(n) })
		b.muted.Store(before)
	}
	return time.Since(began)
}

// run publishes that many messages whose callers never answer at once, and a healthy one every five milliseconds for so long.
func (b *bystanders) run(mute int, during time.Duration) {
	b.w.t.Helper()
	t := b.w.t
	plain := b.burst(mute, nil)
	b.burst(mute, nats.Header{"Relay-Interest": {b.mutes.inbox + ".i"}})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	n := 0
	for began := time.Now(); time.Since(began) < during; <-tick.C {
		n++
		if err := b.w.nc.Publish(fmt.Sprintf("orders.well.%d", n), []byte(strconv.FormatInt(time.Now().UnixNano(), 10))); err != nil {
			t.Fatal(err)
		}
	}
	b.w.eventually("the healthy ones are handled", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waits) >= n
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.waits)
	p50, p99 := b.waits[len(b.waits)/2], b.waits[len(b.waits)*99/100]
	questions, most := 0, 0
	for _, n := range b.asked {
		questions += n
		most = max(most, n)
	}
	t.Logf("%d mute (%v without a question), %d healthy: p50 %v, p99 %v, last %v; %d questions about %d messages, %d at most; %d mute ones started", mute, plain.Round(time.Millisecond), n,
		p50.Round(time.Millisecond), p99.Round(time.Millisecond), b.waits[len(b.waits)-1].Round(time.Millisecond), questions, len(b.asked), most, b.muted.Load())
	// Wanted are 250 ms. The machine may be busy: then so many messages take long by themselves.
	if p99 > 750*time.Millisecond+4*plain {
		t.Errorf("healthy messages waited %v (p99); as many without a caller took %v", p99, plain)
	}
	if questions > 2*len(b.asked) || most > 3 {
		t.Errorf("%d questions about %d messages, %d about one of them", questions, len(b.asked), most)
	}
}

// Whoever subscribes and never answers keeps no slot from the messages of others: however many messages it is asked about, however
// few slots there are, and however long an answer may take.
func TestCallers_mutesHoldNoSlots_timed(t *testing.T) {
	timed(t)
	for _, c := range []struct {
		name        string
		mute, slots int
		timeout     time.Duration
		order       supervisor.Order
	}{
		{"2000 of 64 slots", 2000, 64, 250 * time.Millisecond, "none"},
		{"500 of 8 slots, 10 s", 500, 8, 10 * time.Second, "none"},
		{"2000 of one slot", 2000, 1, 250 * time.Millisecond, "none"},
		{"500 of 8 slots, 2 s", 500, 8, 2 * time.Second, "none"},
		{"500 of 8 slots, in order", 500, 8, 250 * time.Millisecond, supervisor.OrderKey},
		{"2000 of 64 slots, in order, 2 s", 2000, 64, 2 * time.Second, supervisor.OrderKey},
		{"20000 of 8 slots, 10 s", 20_000, 8, 10 * time.Second, "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rt := Route{Concurrency: c.slots, Order: c.order}
			rt.Interest.Timeout = c.timeout
			b := w.bystanders(rt)
			b.run(c.mute, 2*time.Second)
			if c.timeout < 10*time.Second {
				w.eventually("the others are started, too", func() bool { return int(b.muted.Load()) >= c.mute })
				w.settled("ORDERS", "billing")
			}
		})
	}
}

// What waits for its caller has a bound. Messages beyond come again, and healthy ones are handled meanwhile.
func TestCallers_moreMutesThanMayWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := Route{Concurrency: 2}
	rt.Interest.Timeout = 10 * time.Second
	b := w.bystanders(rt)
	for i := range 30 {
		m := &nats.Msg{Subject: fmt.Sprintf("orders.mute.%d", i), Data: make([]byte, 900<<10), Header: nats.Header{"Relay-Interest": {b.mutes.inbox + ".i"}}}
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("there is no room for some", func() bool { return b.rt.Count.Answers[caller.CountedAgain].Load() > 0 })
	for i := range 5 {
		if err := w.nc.Publish(fmt.Sprintf("orders.well.%d", i), []byte(strconv.FormatInt(time.Now().UnixNano(), 10))); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the healthy ones are handled", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waits) == 5
	})
	if n := b.rt.Callers.Gates.Asking(); n == 0 || n > caller.MaxWaitingBytes/(900<<10) {
		t.Errorf("%d wait", n)
	}
}

// However many messages of callers who are not there stand in front: others are asked about, and start, meanwhile.
func TestCallers_regressionMoreAbsentThanMayWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, permitted(Route{Concurrency: 2, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}))
	r.engine.Line.SetGrace(0, time.Hour)
	inbox := nats.NewInbox()
	for i := range 30 {
		m := &nats.Msg{Subject: fmt.Sprintf("orders.gone.%d", i), Data: make([]byte, 900<<10), Header: nats.Header{"Relay-Interest": {inbox}}}
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	a := w.caller(sayYes)
	for i := range 20 {
		a.publish(fmt.Sprintf("orders.well.%d", i), string(make([]byte, 100<<10)), nil)
	}
	for range 20 {
		if m := a.reply("done"); m.Header.Get("Relay-Attempts") != "1" {
			t.Errorf("%v", m.Header)
		}
	}
	if n := r.engine.Routes.All()[0].Callers.Gates.Asking(); n == 0 {
		t.Error("nobody waits")
	}
}

// Messages that wait for their callers go back at once when relay drains, and start elsewhere.
func TestCallers_aDrainWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	for _, order := range []supervisor.Order{"none", supervisor.OrderKey} {
		t.Run(string(order), func(t *testing.T) {
			w := newWorld(t)
			rt := permitted(Route{Order: order, AckWait: time.Minute, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
			rt.Interest.Timeout = 10 * time.Second
			_, stop := w.start(Config{}, rt)
			var speaks atomic.Bool
			a := w.caller(func(q *nats.Msg) {
				if speaks.Load() {
					sayYes(q)
				}
			})
			for i := range 20 {
				a.publish(fmt.Sprintf("orders.%d", i), "", nil)
			}
			w.eventually("all are asked", func() bool { return a.asked.Load() == 20 })
			began := time.Now()
			if err := stop(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the drain took %v", took)
			}
			speaks.Store(true)
			w.start(Config{}, rt)
			for range 20 {
				a.reply("done")
			}
			w.settled("ORDERS", "billing")
		})
	}
}

// In an ordered key nothing overtakes a message whose caller is asked, whatever comes of it.
func TestCallers_askingKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*nats.Msg){"mute": func(*nats.Msg) {}, "yes": sayYes, "no": sayNo} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var got, want []uint64 // one message of a key runs at a time
			rt := permitted(Route{Order: supervisor.OrderKey, Key: "route", Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
				got = append(got, m.Sequence)
				return nil
			})})
			if name == "mute" {
				rt.Interest.Timeout = 50 * time.Millisecond
			}
			_, stop := w.start(Config{}, rt)
			a, plain := w.caller(answer), w.caller(nil)
			for i := range uint64(30) {
				if i%10 == 0 {
					a.publish("orders.asked", "", nil)
				} else {
					plain.publish("orders.plain", "", nil)
				}
				if i%10 != 0 || name != "no" {
					want = append(want, i+1)
				}
			}
			w.eventually("all are in the stream", func() bool {
				st, err := w.js.Stream(t.Context(), "ORDERS")
				return err == nil && st.CachedInfo().State.LastSeq == 30
			})
			w.settled("ORDERS", "billing")
			_ = stop()
			if !slices.Equal(got, want) {
				t.Errorf("started %v, want %v", got, want)
			}
		})
	}
}

// While all slots are busy an answer grows old. The caller is asked once more when its message starts: whoever does not answer at once
// has said yes before, and whoever has gone meanwhile is believed when nobody is there twice.
func TestCallers_anOldYes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy, hold := make(chan struct{}), make(chan struct{})
	r, _ := w.start(Config{}, permitted(Route{Concurrency: 1, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		if string(m.Data) == "long" {
			close(busy)
			<-hold
		}
		return nil
	})}))
	r.engine.Line.SetGrace(0, time.Second)
	count := r.engine.Routes.All()[0].Count
	var later atomic.Bool // the slot was busy, and is free again
	questions := make(chan *nats.Msg, 3)
	ask := func(then func(*nats.Msg)) *asker {
		return w.caller(func(q *nats.Msg) {
			if later.Load() {
				then(q)
			} else {
				questions <- q
			}
		})
	}
	stays, falls, goes := ask(sayYes), ask(func(*nats.Msg) {}), ask(nil)
	for i, a := range []*asker{stays, falls, goes} {
		a.publish(fmt.Sprintf("orders.%d", i), "", nil)
	}
	w.eventually("all are asked", func() bool { return len(questions) == 3 })
	w.caller(nil).publish("orders.long", "long", nil)
	<-busy
	for range 3 {
		sayYes(<-questions)
	}
	w.eventually("all said yes", func() bool { return count.Answers[caller.CountedYes].Load() == 3 })
	said := time.Now()
	w.eventually("that was a while ago", func() bool { return time.Since(said) > caller.HeardLately })
	if err := goes.questions.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := goes.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	later.Store(true)
	close(hold)
	stays.reply("done")
	falls.reply("done")
	// Beside busy processes the server may not say in time that nobody is there. Then the yes counts, as that of somebody who falls silent.
	w.eventually("something is known of the one who has gone", func() bool { return len(goes.replies) > 0 })
	if count.Answers[caller.CountedUnknown].Load() > 1 && count.Forgotten.Load() == 0 {
		goes.reply("done")
	} else {
		goes.reply("forgotten")
	}
	for i, a := range []*asker{stays, falls} {
		if n := a.asked.Load(); n != 2 {
			t.Errorf("caller %d was asked %d times", i, n)
		}
	}
}
