package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// world is a durable with a session on a real server, and the path of one route.
type world struct {
	*Path
	t        *testing.T
	nc       *nats.Conn
	js       jetstream.JetStream
	inbox    string
	durable  Durable
	arrived  chan *ack.Delivery
	draining atomic.Bool

	notStored, gone atomic.Int64
	finished        atomic.Int64

	mu  sync.Mutex
	log strings.Builder
}

func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) said(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.log.String(), what)
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, ok, &w.log)
}

func newWorld(t *testing.T, edit ...func(*Config)) *world {
	t.Helper()
	s := natstest.Start(t)
	w := &world{t: t, nc: s.Conn(t), js: s.JetStream(t), arrived: make(chan *ack.Delivery, 100)}
	w.inbox = w.nc.NewInbox()
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
	own := stores.New(w.js, stores.Config{Service: "relay", Instance: "a", Replicas: 1, Letters: stores.Letters{Bounds: stores.Bounds{Messages: 10}, OnFull: dlq.OnFullBlock}}, log)
	err := errors.Join(own.Open(t.Context(), stores.Opening{
		Began: time.Now(), Attempt: func(ctx context.Context, do func(context.Context) error) error { return do(ctx) },
		Persist: func(ctx context.Context, _ string, do func(context.Context) error) error { return do(ctx) },
	})...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Records.Close)
	stream, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Log: log, Route: "orders", Instance: "a", LettersPrefix: own.DeadPrefix(""), Guarded: true, Stores: own, Solo: suspects.NewSolo(),
		Count: new(metrics.RouteCount), Tally: new(tally.RouteCount), Troubles: trouble.NewList(log, func(string, error) {}), CalledBackFrom: 1000,
		Policy: func() Policy {
			return Policy{ParkAfter: time.Minute, MaxCrashes: 3, Room: retry.Room{Messages: 1000, Bytes: 1 << 20}}
		},
		NotStored: func() { w.notStored.Add(1) }, More: func() {}, Gone: func(*supervise.Message) { w.gone.Add(1) }, Dead: func(dlq.Entry) {},
	}
	for _, f := range edit {
		f(&c)
	}
	w.Path = New(c)
	w.Work = t.Context()
	info := consumer.CachedInfo()
	identity := ack.Identity{StreamCreated: stream.CachedInfo().Created, ConsumerCreated: info.Created}
	w.durable = Durable{
		Stream: "ORDERS", Name: "billing", Leased: func() bool { return false }, Draining: w.draining.Load, Records: own.Records.Records("ORDERS", "billing", info.Created),
		Session: ack.NewSession(ack.Config{
			Inbox: w.inbox, Conn: w.nc, Link: func() uint64 { return 0 }, AckWait: 30 * time.Second, Identity: identity,
			Info: func(context.Context) (ack.Info, error) { return ack.Info{Identity: identity, AckPending: 1}, nil }, Logger: log,
		}),
	}
	w.pull()
	return w
}

// pull hands the deliveries and the answers of the server to the session.
func (w *world) pull() {
	inbox := w.inbox
	sub, err := w.nc.SubscribeSync(inbox + ".>")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.durable.Session.Run(ctx) })
	running.Go(func() {
		for {
			m, err := sub.NextMsgWithContext(ctx)
			if err != nil {
				return
			}
			if !strings.HasPrefix(m.Reply, "$JS.ACK.") {
				w.durable.Session.Reply(m)
			} else if d, err := w.durable.Session.Receive(m); err == nil && d != nil {
				w.arrived <- d
			}
		}
	})
	w.t.Cleanup(func() { cancel(); running.Wait() })
	if err := w.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", inbox+".p", []byte(`{"batch":1000,"expires":600000000000}`)); err != nil {
		w.t.Fatal(err)
	}
}

// owner finishes its message as whoever has no caller does.
type owner struct {
	*Unsettled
	w *world
}

func (o *owner) Confirmed() {}
func (o *owner) Free()      {}
func (o *owner) Finish(supervise.Outcome) {
	o.w.finished.Add(1)
	o.Done()
}

// next is the next delivery of the durable.
func (w *world) next() *Unsettled {
	w.t.Helper()
	select {
	case d := <-w.arrived:
		m := &Unsettled{Path: w.Path, Durable: &w.durable, Delivery: d, Subject: d.Msg.Subject, Header: d.Msg.Header, Data: d.Msg.Data}
		m.Owner, m.Size = &owner{Unsettled: m, w: w}, d.Msg.Size()
		return m
	case <-time.After(30 * time.Second):
		w.t.Fatalf("nothing is delivered; log:\n%s", &w.log)
		return nil
	}
}

// publish stores a message on the stream, and returns its delivery.
func (w *world) publish() *Unsettled {
	w.t.Helper()
	if _, err := w.js.Publish(w.t.Context(), "orders.eu", []byte("7")); err != nil {
		w.t.Fatal(err)
	}
	return w.next()
}

// info is what the server says of the durable.
func (w *world) info() *jetstream.ConsumerInfo {
	w.t.Helper()
	c, err := w.js.Consumer(w.t.Context(), "ORDERS", "billing")
	if err != nil {
		w.t.Fatal(err)
	}
	return c.CachedInfo()
}

// stored is how many messages a stream of relay has.
func (w *world) stored(stream string) uint64 {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// refuse has the server take nothing more for a stream of relay, until the function is called that it returns.
func (w *world) refuse(stream string) (accept func()) {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	was := s.CachedInfo().Config
	full := was
	full.MaxMsgSize = 1
	if _, err := w.js.UpdateStream(w.t.Context(), full); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if _, err := w.js.UpdateStream(context.WithoutCancel(w.t.Context()), was); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) acked() {
	w.t.Helper()
	w.eventually("it is acknowledged", func() bool { return w.info().NumAckPending == 0 })
}

func TestUnsettled_Settle(t *testing.T) {
	t.Parallel()
	failure := errors.New("no route to billing")
	failed := func(delay time.Duration) supervise.Outcome {
		return supervise.Outcome{Action: supervise.RetryLater, Attempts: 1, FirstFailure: time.Now(), Err: failure, Due: time.Now().Add(delay)}
	}
	t.Run("done", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.publish().Settle(supervise.Outcome{Action: supervise.AckMessage})
		w.publish().Settle(supervise.Outcome{Action: supervise.DropMessage, Why: "not for us"})
		w.acked()
		if n := w.finished.Load(); n != 2 {
			t.Errorf("%d are finished", n)
		}
	})
	t.Run("given back at once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		m := w.publish()
		m.Settle(supervise.Outcome{Action: supervise.GiveBack})
		if again := w.next(); again.Delivery.Sequence != m.Delivery.Sequence || again.Delivery.Deliveries != 2 {
			t.Errorf("%+v", again.Delivery)
		}
	})
	t.Run("failed, its record first", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.publish().Settle(failed(time.Millisecond))
		again := w.next()
		rec, err := w.durable.Records.Get(t.Context(), again.Delivery.Sequence, 2)
		if err != nil || rec.Attempts != 1 || rec.LastError != failure.Error() || w.Count.Naked.Load() != 1 {
			t.Errorf("%+v, %v", rec, err)
		}
	})
	t.Run("failed, and it waits for long", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.publish().Settle(failed(time.Hour))
		w.acked()
		if w.stored("RELAY_RETRY") != 1 || w.Count.Parked.Load() != 1 || w.Count.Naked.Load() != 0 {
			t.Errorf("%d are parked", w.stored("RELAY_RETRY"))
		}
	})
	t.Run("failed, of an ordered key", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(c *Config) { c.Ordered = true })
		w.publish().Settle(failed(time.Hour))
		w.eventually("it is given back", func() bool { return w.Count.Naked.Load() == 1 })
		if w.stored("RELAY_RETRY") != 0 || w.info().NumAckPending != 1 {
			t.Error("it left its durable")
		}
	})
	t.Run("dead", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.publish().Settle(supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonExhausted, Attempts: 20, Err: failure})
		w.acked()
		if w.stored("RELAY_DLQ") != 1 || w.Count.Stored() != 1 || w.finished.Load() != 1 {
			t.Errorf("%d dead letters", w.stored("RELAY_DLQ"))
		}
	})
	t.Run("let go", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.publish().Settle(supervise.Outcome{Action: supervise.LetGo})
		if st := w.durable.Session.Stats(); st.Released != 1 || w.info().NumAckPending != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// While the records are not taken, a message that failed is parked, as a parked one carries its attempts itself. While the retry stream does not take
// it either, it is held, and is settled when one of them does.
func TestUnsettled_whatCannotBeStoredIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	records, parked := w.refuse("KV_RELAY_ATTEMPTS"), w.refuse("RELAY_RETRY")
	w.publish().Settle(supervise.Outcome{Action: supervise.RetryLater, Attempts: 1, FirstFailure: time.Now(), Due: time.Now().Add(time.Millisecond), Err: errors.New("no")})
	w.eventually("it is held", func() bool { return w.Held() == 1 })
	if w.notStored.Load() == 0 {
		t.Error("nobody hears that something is not stored")
	}
	records()
	now := time.Now().Add(time.Minute)
	w.eventually("it comes again", func() bool {
		w.Path.Retry(now)
		return len(w.arrived) == 1
	})
	parked()
}

// While no record is taken, a message that failed is parked: a parked one carries its attempts itself.
func TestUnsettled_isParkedWhenItCannotBeRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	defer w.refuse("KV_RELAY_ATTEMPTS")()
	w.publish().Settle(supervise.Outcome{Action: supervise.RetryLater, Attempts: 2, FirstFailure: time.Now(), Due: time.Now().Add(time.Millisecond), Err: errors.New("no")})
	w.acked()
	if w.stored("RELAY_RETRY") != 1 || w.Held() != 0 {
		t.Errorf("%d are parked", w.stored("RELAY_RETRY"))
	}
}

// What another instance may have by now is let go, whatever was to become of it: nothing of it is stored.
func TestUnsettled_fenced(t *testing.T) {
	t.Parallel()
	for _, action := range []supervise.Action{supervise.GiveBack, supervise.RetryLater, supervise.DeadLetter} {
		t.Run(fmt.Sprint(action), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.durable.Health.Edit(health.Edits{Stop: []string{"max_deliver is 2, not -1"}})
			m := w.publish()
			w.durable.Session.Fence()
			m.Settle(supervise.Outcome{Action: action, Reason: supervise.ReasonDead, Attempts: 1, FirstFailure: time.Now(), Due: time.Now().Add(time.Hour), Err: errors.New("no")})
			w.End()
			if st := w.durable.Session.Stats(); st.Released != 1 || w.stored("RELAY_RETRY")+w.stored("RELAY_DLQ") != 0 || w.finished.Load() != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// To everybody outside, a message from the retry stream is the one that it is a copy of.
func TestUnsettled_From(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish()
	if o := m.From(); o.Stream != "ORDERS" || o.Consumer != "billing" || o.Sequence != 1 || o.Route != "orders" || !m.Published().Equal(o.Time) || m.own() != 0 {
		t.Errorf("%+v", o)
	}
	published := time.Now().Add(-time.Hour)
	m.Origin = &retry.Origin{Stream: "OTHER", Sequence: 77, Time: published}
	if o := m.From(); o.Stream != "OTHER" || !m.Published().Equal(published) || m.Attrs()[3] != uint64(77) {
		t.Errorf("%+v", o)
	}
}

// The failure of a message that stays in its group is stored, or whoever waits for that hears that it could not be.
func TestUnsettled_Remember(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish()
	stored := make(chan bool, 1)
	o := supervise.Outcome{Action: supervise.RetryLater, Attempts: 1, FirstFailure: time.Now(), Due: time.Now().Add(time.Hour), Err: errors.New("no")}
	m.Remember(o, func(ok bool) { stored <- ok })
	if rec, _ := w.durable.Records.Cached(1, 1); !<-stored || !m.Recorded || w.Count.Kept.Load() != 1 {
		t.Errorf("%+v", rec)
	}
	defer w.refuse("KV_RELAY_ATTEMPTS")()
	o.Attempts++
	m.Remember(o, func(ok bool) { stored <- ok })
	w.eventually("it is held", func() bool { return w.Held() == 1 })
	w.draining.Store(true)
	w.End()
	if <-stored {
		t.Error("it is stored, and cannot be")
	}
}

// While dead letters are not taken a message stays in its stream, and comes again to become one.
func TestUnsettled_deadLettersThatAreNotTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	accept := w.refuse("RELAY_DLQ")
	m := w.publish()
	m.Settle(supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonExhausted, Attempts: 20, Err: errors.New("no")})
	w.eventually("it is said", func() bool { return w.said("cannot store the dead letter") && w.Trouble(time.Now()) != nil })
	again := w.next()
	rec, err := w.durable.Records.Get(t.Context(), 1, 2)
	if err != nil || rec.Dead != supervise.ReasonExhausted || rec.Attempts != 20 || w.Count.NotDead.Load() != 1 {
		t.Errorf("%+v, %v", rec, err)
	}
	accept()
	again.Recorded = true
	again.Settle(supervise.Outcome{Action: supervise.DeadLetter, Reason: rec.Dead, Attempts: rec.Attempts})
	w.acked()
	if w.stored("RELAY_DLQ") != 1 || w.Trouble(time.Now()) != nil {
		t.Error("it is no dead letter")
	}
}

// A message that waits for something else leaves the durable when many are outstanding, is forgotten by its group then, and is not kept in
// memory when it stays.
func TestUnsettled_putAside(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.CalledBackFrom = -1 })
	aside := supervise.Outcome{Action: supervise.GiveBack, Aside: true, Due: time.Now().Add(time.Hour)}
	w.publish().Settle(aside)
	w.acked()
	if w.stored("RELAY_RETRY") != 1 || w.Count.Aside.Load() != 1 || w.gone.Load() != 1 {
		t.Errorf("%d parked, %d gone", w.stored("RELAY_RETRY"), w.gone.Load())
	}
	accept := w.refuse("RELAY_RETRY")
	m := w.publish()
	away, kept := m.Away(), weak.Make(m)
	m.Settle(aside)
	w.eventually("it goes back", func() bool { return w.Unparked() == 1 && w.durable.Session.Stats().Naked == 1 })
	w.End()
	w.eventually("what the group has does not keep the message", func() bool { runtime.GC(); return kept.Value() == nil })
	accept()
	away.CallBack(time.Now())
	if again := w.next(); again.Delivery.Sequence != 2 {
		t.Errorf("%+v", again.Delivery)
	}
}

// While messages wait to be put aside their lease may be lost, and another instance has them.
func TestUnsettled_aFencedMessageIsNotPutAside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish()
	w.durable.Session.Fence()
	m.putAside(supervise.Outcome{Due: time.Now().Add(time.Hour)})
	w.End()
	if st := w.durable.Session.Stats(); w.stored("RELAY_RETRY") != 0 || st.Released != 1 {
		t.Errorf("%d parked, %+v", w.stored("RELAY_RETRY"), st)
	}
}

// On a durable with a bound of deliveries nothing is given back: it is parked, or held when it must not be.
func TestUnsettled_bounded(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) { c.Ordered = ordered })
			w.durable.Health.Edit(health.Edits{Stop: []string{"max_deliver is 2, not -1"}})
			w.publish().Settle(supervise.Outcome{Action: supervise.GiveBack, Due: time.Now().Add(time.Hour)})
			if !ordered {
				w.acked()
				if w.stored("RELAY_RETRY") != 1 {
					t.Error("it is not parked")
				}
				return
			}
			w.eventually("it is held", func() bool { return w.Held() == 1 })
			w.End()
			if st := w.durable.Session.Stats(); st.Released != 1 || st.Naked != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A dead letter that is not taken must not go back to a durable with a bound of deliveries: it is held until it is taken.
func TestUnsettled_deadLettersOfABoundedDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.durable.Health.Edit(health.Edits{Stop: []string{"max_deliver is 2, not -1"}})
	accept := w.refuse("RELAY_DLQ")
	w.publish().Settle(supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonDead, Attempts: 1, Err: errors.New("no")})
	w.eventually("it is held", func() bool { return w.Held() == 1 })
	accept()
	w.Path.Retry(time.Now().Add(time.Minute))
	w.acked()
	if st := w.durable.Session.Stats(); st.Naked != 0 || w.stored("RELAY_DLQ") != 1 {
		t.Errorf("%+v", st)
	}
}

// What came with a message is enough to park it.
func TestUnsettled_ParkUnread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish()
	if !m.ParkUnread() {
		t.Error("it is not parked")
	}
	w.acked()
}

// What a newer version wrote goes back as it is, and the route says so.
func TestUnsettled_Newer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish().Newer(retry.ErrOtherVersion)
	if err := w.Troubles.Err(); err == nil || !strings.Contains(err.Error(), "until this instance is updated") || w.info().NumAckPending != 1 {
		t.Error(err)
	}
}

// An old delivery whose later copy is parked is acknowledged when it fails: it does not go on beside that.
func TestUnsettled_anOldDeliveryEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish()
	origin := m.From()
	origin.Attempts = 3
	if err := w.Stores.Retries.Park(t.Context(), origin, nil, m.Data, time.Now().Add(time.Hour), w.Room(), 0); err != nil {
		t.Fatal(err)
	}
	m.Doubtful = true
	m.Settle(supervise.Outcome{Action: supervise.RetryLater, Attempts: 1, FirstFailure: time.Now(), Due: time.Now(), Err: errors.New("no")})
	w.acked()
	if w.stored("RELAY_RETRY") != 1 || !w.said("an old delivery is acknowledged") {
		t.Errorf("%d parked", w.stored("RELAY_RETRY"))
	}
}

// A suspect is accused before it starts, and acquitted whatever becomes of it.
func TestUnsettled_suspect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish()
	if _, ok := m.Prepare(); !ok || m.crashes() != 0 {
		t.Error("one that is none must wait")
	}
	rec, err := m.Judge(t.Context(), retry.Record{}, time.Now())
	if err != nil || rec.Crashes != 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	m.Suspect = suspects.New(retry.Record{Suspect: true, Crashes: 1}, w.durable.Records, m.Delivery.Sequence, m.Delivery.Deliveries)
	if v, ok := m.Prepare(); !ok {
		t.Errorf("%+v", v)
	}
	m.Settle(supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonCrash, Attempts: 1})
	w.acked()
	if w.stored("RELAY_DLQ") != 1 {
		t.Error("it is no dead letter")
	}
}

// A route parks in no more room than its policy has, and what goes aside gets a share of it.
func TestPath_share(t *testing.T) {
	t.Parallel()
	p := New(Config{Policy: func() Policy { return Policy{Room: retry.Room{Messages: 25, Bytes: 1000}} }, More: func() {}})
	if r := p.Room(); r.Messages != 25 || r.Bytes != 1000 {
		t.Errorf("%+v", r)
	}
	if r := p.share(asideShare); r.Messages != 2 || r.Bytes != 100 {
		t.Errorf("%+v", r)
	}
	if r := p.share(5000); r.Messages != 1 || r.Bytes != 1 {
		t.Errorf("%+v: nothing at all means no bound", r)
	}
	if p.Full() || p.Held() != 0 || p.Trouble(time.Now()) != nil {
		t.Error("there is something, and nothing came")
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	if s := ErrorText(nil); s != "" {
		t.Error(s)
	}
	if s := ErrorText(errors.New(strings.Repeat("x", 2*retry.MaxErrorLen))); len(s) != retry.MaxErrorLen {
		t.Errorf("%d bytes", len(s))
	}
}
