package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/supervisor"
)

// permitted is a route whose callers may ask for everything under _INBOX.
func permitted(rt Route) Route {
	rt.Name, rt.Subjects = "billing", []string{"orders.>"}
	rt.Caller = Caller{Reply: []string{"_INBOX.>"}, Interest: []string{"_INBOX.>"}}
	rt.Interest.Timeout = 10 * time.Second // a caller on a busy machine is not silent
	return rt
}

// soonAgain is for tests that wait for retries.
var soonAgain = supervisor.Backoff{Policy: supervisor.Constant, Min: 20 * time.Millisecond}

// asker is a caller by hand: what it answers, and the replies that it got.
type asker struct {
	w              *world
	nc             *nats.Conn
	inbox          string
	questions, say *nats.Subscription
	asked          atomic.Int64
	replies        chan *nats.Msg
}

func (w *world) caller(answer func(q *nats.Msg)) *asker {
	w.t.Helper()
	a := &asker{w: w, nc: w.s.Conn(w.t), inbox: nats.NewInbox(), replies: make(chan *nats.Msg, 100)}
	var err error
	if answer != nil {
		if a.questions, err = a.nc.Subscribe(a.inbox+".i", func(q *nats.Msg) { a.asked.Add(1); answer(q) }); err != nil {
			w.t.Fatal(err)
		}
	}
	if a.say, err = a.nc.ChanSubscribe(a.inbox+".r", a.replies); err != nil {
		w.t.Fatal(err)
	}
	if err := a.nc.Flush(); err != nil {
		w.t.Fatal(err)
	}
	return a
}

func sayYes(q *nats.Msg) { _ = q.Respond(nil) }
func sayNo(q *nats.Msg) {
	_ = q.RespondMsg(&nats.Msg{Header: nats.Header{"relay-interested": {"No"}}})
}

// publish publishes a message of the caller, with more headers.
func (a *asker) publish(subject, body string, more nats.Header) {
	a.w.t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{"Relay-Reply-To": {a.inbox + ".r"}}}
	if a.questions != nil {
		m.Header.Set("relay-interest", a.inbox+".i")
	}
	for k, v := range more {
		m.Header[k] = v
	}
	if _, err := a.w.js.PublishMsg(a.w.t.Context(), m); err != nil {
		a.w.t.Fatal(err)
	}
}

// reply waits for a reply, and checks its outcome.
func (a *asker) reply(outcome string) *nats.Msg {
	a.w.t.Helper()
	select {
	case m := <-a.replies:
		if got := m.Header.Get("Relay-Outcome"); got != outcome {
			a.w.t.Fatalf("outcome %q (%v, %q), want %q", got, m.Header, m.Data, outcome)
		}
		return m
	case <-time.After(30 * time.Second):
		a.w.t.Fatalf("no reply with outcome %s", outcome)
		return nil
	}
}

// The caller of a message gets its result, also after attempts that failed, and a message that nobody asked for has none.
func TestCallers_theResultComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, permitted(Route{
		Retry: Retry{Backoff: soonAgain},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			m.Reply([]byte("attempt " + fmt.Sprint(m.Attempt)))
			m.ReplyHeader("Content-Type", "text/plain")
			if m.Attempt < 3 {
				return errors.New("not yet")
			}
			m.Reply([]byte(strings.Repeat("r", 300<<10)))
			return nil
		}),
	}))
	a := w.caller(sayYes)
	a.publish("orders.eu", "body", nil)
	got := a.reply("done")
	want := map[string]string{"Relay-Attempts": "3", "Relay-Error": "", "Relay-Result-Truncated": "true", "Content-Type": "text/plain"}
	for name, value := range want {
		if got.Header.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, got.Header.Get(name), value)
		}
	}
	id := got.Header.Get("Relay-Id")
	if len(got.Data) != 256<<10 || !strings.HasPrefix(id, "ORDERS~billing~1~") || got.Header.Get("Nats-Msg-Id") != id+".done" {
		t.Errorf("%d bytes, %v", len(got.Data), got.Header)
	}
	w.settled("ORDERS", "billing")
	if n := a.asked.Load(); n != 3 {
		t.Errorf("asked %d times, want once before each attempt", n)
	}
	if c := r.engine.Routes.All()[0].Count; c.Answers[caller.CountedYes].Load() != 3 || c.Replies[0].Load() != 1 {
		t.Errorf("counted %d questions, %d replies", c.Answers[caller.CountedYes].Load(), c.Replies[0].Load())
	}
}

// Each way in which a message can end is told to its caller.
func TestCallers_everyOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(Config{}, permitted(Route{
		Retry: Retry{Backoff: soonAgain, MaxAttempts: 2},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			switch string(m.Data) {
			case "dead":
				return Dead(errors.New("line\r\nbreak"))
			case "drop":
				return Drop("nobody needs it")
			case "panic":
				panic("at the disco")
			}
			return errors.New("always")
		}),
	}))
	a := w.caller(nil)
	for body, want := range map[string][3]string{
		"dead": {"dead", "1", "break"}, "drop": {"dropped", "0", "nobody needs it"}, "fail": {"dead", "2", "always"}, "panic": {"dead", "2", "panic: at the disco"},
	} {
		a.publish("orders."+body, body, nil)
		got := a.reply(want[0])
		if h := got.Header; h.Get("Relay-Attempts") != want[1] || !strings.Contains(h.Get("Relay-Error"), want[2]) || len(got.Data) > 0 {
			t.Errorf("%s: %v %q", body, h, got.Data)
		}
	}
	w.settled("ORDERS", "billing")
}

// What is past its deadline is not started, and its caller learns it; whether it is kept is the route's.
func TestCallers_deadline(t *testing.T) {
	t.Parallel()
	for _, onExpired := range []string{expiredDrop, ExpiredDeadLetter} {
		t.Run(onExpired, func(t *testing.T) {
			w := newWorld(t)
			l := newLedger()
			r, _ := w.start(Config{}, permitted(Route{
				Deadline: Deadline{OnExpired: onExpired}, Retry: Retry{Backoff: soonAgain},
				Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
					l.note(m)
					if m.Attempt == 1 && string(m.Data) == "again" {
						time.Sleep(time.Until(m.Time.Add(400 * time.Millisecond))) // past its deadline, by the same clock
						return errors.New("too slow")
					}
					return nil
				}),
			}))
			a := w.caller(nil)
			past := time.Now().Add(-time.Hour).Format(time.RFC3339)
			a.publish("orders.1", "", nats.Header{"RELAY-DEADLINE": {past}})
			a.reply("expired")
			a.publish("orders.2", "", nats.Header{"Relay-Deadline": {past}, "Relay-Expires-In": {"1h"}}) // the earlier one counts
			a.reply("expired")
			a.publish("orders.3", "", nats.Header{"Relay-Expires-In": {"0s"}})
			a.reply("expired")
			if l.len() != 0 {
				t.Errorf("%d were started", l.len())
			}
			a.publish("orders.4", "again", nats.Header{"Relay-Expires-In": {"300ms"}}) // it may start once, if the machine is quick
			a.reply("expired")
			a.publish("orders.5", "", nats.Header{"Relay-Deadline": {time.Now().Add(time.Hour).Format(time.RFC3339Nano)}, "Relay-Expires-In": {"1h"}})
			a.reply("done")
			w.settled("ORDERS", "billing")
			if n := r.engine.Routes.All()[0].Count.Expired.Load(); n != 4 {
				t.Errorf("counted %d", n)
			}
			want := 0
			if onExpired == ExpiredDeadLetter {
				want = 4
			}
			letters := w.deadLetters()
			if len(letters) != want {
				t.Fatalf("%d dead letters, want %d", len(letters), want)
			}
			if want == 0 {
				return
			}
			if e := letters[0]; e.Reason != "expired" || !strings.Contains(e.LastError, "deadline") {
				t.Errorf("%+v", e)
			}
			// A replay is an operator's decision: it is started, and told again.
			store, err := dlq.Attach(t.Context(), w.js, "")
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Replay(t.Context(), letters[0], dlq.Target{}); err != nil {
				t.Fatal(err)
			}
			got := a.reply("done")
			if id := got.Header.Get("Nats-Msg-Id"); !strings.HasSuffix(id, ".done.1") {
				t.Errorf("Nats-Msg-Id %q", id)
			}
		})
	}
}

// An ordered message expired while it was away: its key waited for it for a minute or more.
func TestCallers_regressionAnExpiredMessageDoesNotBlockItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, permitted(Route{
		Order: supervisor.OrderKey, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	}))
	rt := r.engine.Routes.All()[0]
	rt.Group.Expect(rt.KeyOf("orders.eu"), 1)
	a := w.caller(nil)
	a.publish("orders.eu", "", nats.Header{"Relay-Expires-In": {"0s"}})
	a.reply("expired")
	a.publish("orders.eu", "", nil)
	a.reply("done")
}

// A caller who says no, or is gone for good, has its message forgotten: it never starts, spends nothing and is no dead letter.
func TestCallers_forgottenBeforeTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	r, _ := w.start(Config{}, permitted(Route{
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
	}))
	r.engine.Line.SetGrace(0, time.Second)
	a := w.caller(sayNo)
	a.publish("orders.no", "", nil)
	a.reply("forgotten")
	c := r.engine.Routes.All()[0].Count
	a.publish("orders.gone", "", nats.Header{"relay-interest": {nats.NewInbox()}}) // young: it is asked twice
	a.reply("forgotten")
	if again, nobody := c.Answers[caller.CountedAgain].Load(), c.Answers[caller.CountedNobody].Load(); again == 0 || nobody != 1 {
		t.Errorf("asked again %d times, nobody %d", again, nobody)
	}
	w.settled("ORDERS", "billing")
	if l.len() > 0 || c.Forgotten.Load() != 2 || len(w.deadLetters()) > 0 {
		t.Errorf("%d started, %d forgotten, %d dead", l.len(), c.Forgotten.Load(), len(w.deadLetters()))
	}
}

// A caller who does not answer in time: unknown says what that means.
func TestCallers_unknown(t *testing.T) {
	t.Parallel()
	for unknown, want := range map[string]string{unknownStart: "done", UnknownDrop: "forgotten"} {
		t.Run(unknown, func(t *testing.T) {
			w := newWorld(t)
			rt := permitted(Route{Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
				if d, _ := ctx.Deadline(); ctx.Err() != nil || !m.Deadline.Equal(d) {
					return Dead(errors.New("the question was taken off the timeout"))
				}
				return nil
			})})
			rt.Timeout, rt.Interest = 2*time.Second, Interest{Unknown: unknown, Timeout: 2 * time.Second}
			r, _ := w.start(Config{}, rt)
			a := w.caller(func(*nats.Msg) {})
			a.publish("orders.1", "", nil)
			a.reply(want)
			if n := r.engine.Routes.All()[0].Count.Answers[caller.CountedUnknown].Load(); n != 1 {
				t.Errorf("counted %d", n)
			}
		})
	}
}

// A handler is cancelled, with the cause, when its caller does not want the message any more, and that is no failure.
func TestCallers_forgottenWhileItRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cause := make(chan error, 1)
	rt := permitted(Route{Handler: HandlerFunc(func(ctx context.Context, _ *Msg) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})})
	rt.Interest.Every = 100 * time.Millisecond
	r, _ := w.start(Config{}, rt)
	var gone atomic.Bool
	var a *asker
	a = w.caller(func(q *nats.Msg) {
		if gone.Load() {
			sayNo(q)
		} else {
			sayYes(q)
		}
		if a.asked.Load() == 3 { // it runs, and was asked again meanwhile
			gone.Store(true)
		}
	})
	a.publish("orders.1", "", nil)
	if err := <-cause; err != ErrForgotten {
		t.Errorf("the cause is %v", err)
	}
	a.reply("forgotten")
	w.settled("ORDERS", "billing")
	if c := r.engine.Routes.All()[0].Count; c.Forgotten.Load() != 1 || c.Naked.Load()+c.Kept.Load() != 0 {
		t.Errorf("forgotten %d, retried %d", c.Forgotten.Load(), c.Naked.Load()+c.Kept.Load())
	}
}

// Callers who never answer hold no slot: each is asked once, and the others' messages start meanwhile.
func TestCallers_questionsLeaveSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := permitted(Route{Concurrency: 4, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
	rt.Interest = Interest{Timeout: 10 * time.Second, Unknown: UnknownDrop}
	r, _ := w.start(Config{}, rt)
	silent := w.caller(func(*nats.Msg) {})
	for i := range 12 {
		silent.publish(fmt.Sprintf("orders.silent.%d", i), "", nil)
	}
	w.eventually("all are asked", func() bool { return silent.asked.Load() == 12 })
	a := w.caller(sayYes)
	for i := range 5 {
		a.publish(fmt.Sprintf("orders.well.%d", i), "", nil)
		a.reply("done")
	}
	if s := r.engine.Routes.All()[0].CallersStatus(); s.Asking != 12 || s.Again != 0 || silent.asked.Load() != 12 {
		t.Errorf("%+v, asked %d times", s, silent.asked.Load())
	}
}

// A message that must not be forgotten for want of a caller: one that was cut off while relay's own connection was away comes back.
func TestCallers_absenceAfterAReconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, permitted(Route{Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}))
	inbox := nats.NewInbox()
	a := w.caller(nil)
	a.publish("orders.1", "", nats.Header{"Relay-Interest": {inbox}, "Relay-Deadline": {}})
	c := r.engine.Routes.All()[0].Count
	w.eventually("it was asked for in vain", func() bool { return c.Answers[caller.CountedAgain].Load() >= 2 })
	sub, err := a.nc.Subscribe(inbox, sayYes)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	a.reply("done")
}

// Nobody borrows relay's voice: what a route does not permit is refused and counted, and the message runs without.
func TestCallers_hostileHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, permitted(Route{
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { m.Reply([]byte("secret")); return nil }),
	}))
	a := w.caller(nil)
	spy, err := w.s.Conn(t).SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = a.inbox + ".r"
	}
	cases := map[string][]string{
		"the API": {"$JS.API.STREAM.DELETE.ORDERS"}, "relay's own": {"relay.ctl.act.x"}, "a wildcard": {"_INBOX.*"}, "a full wildcard": {"_INBOX.>"},
		"not permitted": {"orders.eu"}, "control bytes": {"_INBOX.a\x01b"}, "spaces": {"_INBOX.a b"}, "empty": {""}, "an empty token": {"_INBOX..a"},
		"long": {"_INBOX." + strings.Repeat("a", 600)}, "a thousand": many, "dead letters": {"relay.dlq.x"},
	}
	n := uint64(0)
	for name, values := range cases {
		for _, header := range []string{"Relay-Reply-To", "RELAY-INTEREST"} {
			m := &nats.Msg{Subject: "orders.hostile", Data: []byte(name), Header: nats.Header{header: values}}
			if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	a.publish("orders.last", "", nil)
	a.reply("done")
	w.settled("ORDERS", "billing")
	c := r.engine.Routes.All()[0].Count
	if got := c.Refused.Load(); got != n || c.Settled[2].Load() != n+1 {
		t.Errorf("refused %d, acked %d, want %d and one more", got, c.Settled[2].Load(), n)
	}
	for {
		m, err := spy.NextMsg(50 * time.Millisecond)
		if err != nil {
			break
		}
		if string(m.Data) == "secret" && m.Subject != a.inbox+".r" {
			t.Errorf("relay published on %s", m.Subject)
		}
	}
}

// The result comes also from a message that waited in the retry stream, which has another arrival and the same caller.
func TestCallers_parked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, permitted(Route{
		Retry: Retry{ParkAfter: time.Millisecond, Backoff: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Second}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if m.Attempt == 1 {
				return errors.New("not yet")
			}
			m.Reply(m.Data)
			return nil
		}),
	}))
	a := w.caller(sayYes)
	a.publish("orders.1", "the body", nil)
	if got := a.reply("done"); string(got.Data) != "the body" || got.Header.Get("Relay-Attempts") != "2" {
		t.Errorf("%q %v", got.Data, got.Header)
	}
	if n := r.engine.Routes.All()[0].Count.Parked.Load(); n != 1 {
		t.Errorf("parked %d times", n)
	}
}

// A message that is forgotten says nothing of its key: it is no success that ends an outage, and it holds up nobody behind it.
func TestCallers_forgottenIsNoVerdict(t *testing.T) {
	t.Parallel()
	for _, order := range []supervisor.Order{"none", supervisor.OrderKey} {
		t.Run(string(order), func(t *testing.T) {
			w := newWorld(t)
			var last atomic.Bool
			r, _ := w.start(Config{}, permitted(Route{
				Order: order, Key: "route", Retry: Retry{Backoff: soonAgain, MaxAttempts: -1},
				Supervisor: supervisor.Config{TripAfter: new(1), Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: 100 * time.Millisecond}},
				Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
					if string(m.Data) == "unwanted" {
						return Dead(errors.New("started for nobody"))
					}
					if !last.Load() {
						return errors.New("down")
					}
					return nil
				}),
			}))
			rt := r.engine.Routes.All()[0]
			wanted, unwanted := w.caller(sayYes), w.caller(sayNo)
			if order == supervisor.OrderKey {
				unwanted.publish("orders.0", "unwanted", nil)
			}
			wanted.publish("orders.1", "wanted", nil)
			w.eventually("the key waits", func() bool { return rt.Count.Moves[supervise.Waiting].Load() > 0 })
			if order == "none" {
				for i := range 5 {
					unwanted.publish(fmt.Sprintf("orders.%d", i+2), "unwanted", nil)
				}
				for range 5 {
					unwanted.reply("forgotten")
				}
				if n := rt.Count.Moves[supervise.Flowing].Load(); n > 0 {
					t.Errorf("what was never started ended the outage %d times", n)
				}
			} else {
				unwanted.reply("forgotten")
			}
			last.Store(true)
			wanted.reply("done")
			w.settled("ORDERS", "billing")
		})
	}
}

// Messages whose callers are away are not held until these are told, once they are many bytes: they would keep out those of others.
func TestCallers_regressionWhoIsAwayKeepsNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := permitted(Route{AckWait: 10 * time.Minute, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
	rt.Stash.Bytes = 1 << 20
	r, _ := w.start(Config{Drain: 100 * time.Millisecond}, rt)
	r.engine.Line.SetGrace(time.Hour, time.Hour)
	inbox := nats.NewInbox()
	for i := range 80 {
		m := &nats.Msg{Subject: fmt.Sprintf("orders.away.%d", i), Data: make([]byte, 900<<10), Header: nats.Header{"Relay-Reply-To": {inbox}}}
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	a := w.caller(sayYes)
	a.publish("orders.well", "", nil)
	a.reply("done")
	c := &r.engine.Routes.All()[0].Callers
	w.eventually("few are held", func() bool { return c.Holding.Bytes() <= 4<<20 })
	if n := c.Holding.Telling(); n < 10 { // those that were given up for others had their tries
		t.Errorf("%d outcomes are being told", n)
	}
}
