package intake

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/memory"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/strays"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// world is a durable with a session on a real server, and one route.
type world struct {
	Route
	t        *testing.T
	nc       *nats.Conn
	js       jetstream.JetStream
	durable  settle.Durable
	arrived  chan *ack.Delivery
	draining atomic.Bool
	expected atomic.Uint64
	of       atomic.Value // the subject of what is expected
	troubles *trouble.List
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, ok)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := natstest.Start(t)
	w := &world{t: t, nc: s.Conn(t), js: s.JetStream(t), arrived: make(chan *ack.Delivery, 100)}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	own := stores.New(w.js, stores.Config{Service: "relay", Instance: "a", Replicas: 1, Letters: stores.Letters{Bounds: stores.Bounds{Messages: 10}, OnFull: dlq.OnFullBlock}}, log)
	w.do(errors.Join(own.Open(t.Context(), stores.Opening{
		Began: time.Now(), Attempt: func(ctx context.Context, do func(context.Context) error) error { return do(ctx) },
		Persist: func(ctx context.Context, _ string, do func(context.Context) error) error { return do(ctx) },
	})...))
	t.Cleanup(own.Records.Close)
	stream, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	w.do(err)
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second})
	w.do(err)
	w.troubles = trouble.NewList(log, func(string, error) {})
	path := settle.New(settle.Config{
		Log: log, Route: "orders", Instance: "a", LettersPrefix: own.DeadPrefix(""), Ordered: true, Stores: own, Solo: suspects.NewSolo(),
		Count: new(metrics.RouteCount), Tally: new(tally.RouteCount), Troubles: w.troubles, CalledBackFrom: 1000,
		Policy: func() settle.Policy {
			return settle.Policy{ParkAfter: time.Minute, MaxCrashes: 3, Room: retry.Room{Messages: 1000, Bytes: 1 << 20}}
		},
		NotStored: func() {}, More: func() {}, Gone: func(*supervise.Message) {}, Dead: func(dlq.Entry) {},
	})
	path.Work = t.Context()
	t.Cleanup(path.End)
	w.Route = Route{
		Path: path, JS: w.js, Memory: memory.New(supervise.Room{Messages: 1000, Bytes: 1 << 20}, func() {}),
		Expect: func(subject string, sequence uint64) { w.of.Store(subject); w.expected.Store(sequence) },
	}
	info := consumer.CachedInfo()
	identity := ack.Identity{StreamCreated: stream.CachedInfo().Created, ConsumerCreated: info.Created}
	inbox := w.nc.NewInbox()
	w.durable = settle.Durable{
		Stream: "ORDERS", Name: "billing", Leased: func() bool { return false }, Draining: w.draining.Load, Records: own.Records.Records("ORDERS", "billing", info.Created),
		Session: ack.NewSession(ack.Config{
			Inbox: inbox, Conn: w.nc, Link: func() uint64 { return 0 }, AckWait: 30 * time.Second, Identity: identity,
			Info: func(context.Context) (ack.Info, error) { return ack.Info{Identity: identity, AckPending: 1}, nil },
		}),
	}
	w.pull(inbox)
	return w
}

// pull hands the deliveries and the answers of the server to the session.
func (w *world) pull(inbox string) {
	sub, err := w.nc.SubscribeSync(inbox + ".>")
	w.do(err)
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
	w.do(w.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", inbox+".p", []byte(`{"batch":1000,"expires":600000000000}`)))
}

// owner finishes its message as whoever has no caller does.
type owner struct{ *Arrival }

func (owner) Confirmed()                 {}
func (owner) Free()                      {}
func (o owner) Finish(supervise.Outcome) { o.Done() }

// next is the next delivery of the durable.
func (w *world) next() *Arrival {
	w.t.Helper()
	select {
	case d := <-w.arrived:
		m := &Arrival{Unsettled: settle.Unsettled{
			Path: w.Path, Durable: &w.durable, Delivery: d, Subject: d.Msg.Subject, Header: d.Msg.Header, Data: d.Msg.Data,
		}}
		m.Owner = owner{m}
		return m
	case <-time.After(30 * time.Second):
		w.t.Fatal("nothing is delivered")
		return nil
	}
}

// publish stores a message on the stream, and returns its delivery.
func (w *world) publish(header nats.Header) *Arrival {
	w.t.Helper()
	_, err := w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: "orders.eu", Header: header, Data: []byte("seven")})
	w.do(err)
	return w.next()
}

// again is the second delivery of a message.
func (w *world) again(m *Arrival) *Arrival {
	w.t.Helper()
	w.do(m.Delivery.Nak(time.Now()))
	return w.next()
}

func (w *world) settled() {
	w.t.Helper()
	w.eventually("all is settled", func() bool {
		c, err := w.js.Consumer(w.t.Context(), "ORDERS", "billing")
		return err == nil && c.CachedInfo().NumAckPending == 0
	})
}

// dead are the reasons of the dead letters.
func (w *world) dead() (list []string) {
	w.t.Helper()
	letters, err := dlq.Attach(w.t.Context(), w.js, "relay")
	w.do(err)
	for e, err := range letters.List(w.t.Context(), dlq.Filter{}) {
		w.do(err)
		list = append(list, e.LastError)
	}
	return list
}

// lookUp returns what is known of the message; nil: it was settled.
func (w *world) lookUp(m *Arrival) (known *retry.Record) {
	m.LookUp(&w.Route, func(rec retry.Record) { known = &rec })
	return known
}

// A message that came again has the attempts that were recorded, asked for in its turn or before.
func TestArrival_LookUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.publish(nil)
	if rec := w.lookUp(first); rec == nil || rec.Attempts != 0 {
		t.Errorf("of a message that came for the first time: %+v", rec)
	}
	w.do(w.durable.Records.Put(t.Context(), 1, 1, retry.Record{Attempts: 3}))
	m := w.again(first)
	if rec := w.lookUp(m); rec == nil || rec.Attempts != 3 {
		t.Errorf("of one that came again: %+v", rec)
	}
	m.WillAsk()
	m.AskAhead(&w.Route, time.Now())
	w.do(w.durable.Records.Put(t.Context(), 1, 2, retry.Record{Attempts: 4}))
	if rec := w.lookUp(m); rec == nil || rec.Attempts != 3 {
		t.Errorf("asked before its turn: %+v", rec)
	}
	if rec := w.lookUp(m); rec == nil || rec.Attempts != 4 {
		t.Errorf("asked once more: %+v", rec)
	}
}

// After a failure that all of them saw, the messages of an ordered route paused for a second each, one after the other, though the server answered
// again: the route stood still for minutes.
func TestArrival_LookUp_regressionThoseAskedForTogetherDoNotPauseInTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 20
	var again []*Arrival
	for range n {
		again = append(again, w.again(w.publish(nil)))
	}
	w.do(w.js.DeleteStream(t.Context(), "KV_RELAY_ATTEMPTS"))
	var asking sync.WaitGroup
	for _, m := range again {
		m.WillAsk()
		asking.Go(func() { m.AskAhead(&w.Route, time.Now()) })
	}
	bucket := w.Stores.Records
	w.eventually("one of them fails", func() bool { _, err := bucket.Trouble(); return err != nil })
	ctx, cancel := context.WithCancel(t.Context())
	asking.Go(func() { bucket.Watch(ctx, w.Log) }) // makes the bucket again
	w.eventually("the bucket works", func() bool { _, err := bucket.Trouble(); return err == nil })
	began := time.Now()
	for _, m := range again {
		if rec := w.lookUp(m); rec == nil {
			t.Errorf("message %d is not known", m.Delivery.Sequence)
		}
	}
	if took := time.Since(began); took > n/2*time.Second {
		t.Errorf("it took %v until all were known", took)
	}
	cancel()
	asking.Wait()
}

// What cannot be known settles the message, or has it come again.
func TestArrival_LookUp_inVain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.publish(nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w.Work = ended // as at the end of a drain
	m = w.again(m)
	if rec := w.lookUp(m); rec != nil {
		t.Errorf("at the end: %+v", rec)
	}
	if w.expected.Load() != m.Delivery.Sequence {
		t.Error("its key does not wait for it")
	}
}

// A body that the server left out is read from the stream; a message that is gone is let go.
func TestArrival_LookUp_bodyless(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, gone := range []bool{false, true} {
		m := w.publish(nats.Header{"A": {"b"}})
		m.Data, m.Bodyless, m.Elsewhere = nil, true, true
		if gone {
			stream, err := w.js.Stream(t.Context(), "ORDERS")
			w.do(err)
			w.do(stream.DeleteMsg(t.Context(), m.Delivery.Sequence))
		}
		rec := w.lookUp(m)
		switch {
		case gone && (rec != nil || w.Count.Settled[supervise.LetGo].Load() != 1 || w.expected.Load() != m.Delivery.Sequence):
			t.Errorf("one that is gone: %+v, expected %d", rec, w.expected.Load())
		case !gone && (rec == nil || string(m.Data) != "seven" || m.Header.Get("A") != "b"):
			t.Errorf("%+v, %q, %v", rec, m.Data, m.Header)
		}
	}
	if !IsBodyless(&nats.Msg{Header: nats.Header{"Nats-Msg-Size": {"5"}}}) || IsBodyless(&nats.Msg{Header: nats.Header{"Nats-Msg-Size": {"0"}}}) ||
		IsBodyless(&nats.Msg{Data: []byte("1"), Header: nats.Header{"Nats-Msg-Size": {"5"}}}) || IsBodyless(new(nats.Msg)) {
		t.Error("what has no body is told wrongly")
	}
	m := w.publish(nil)
	began := time.Now()
	m.ReturnBodyless()
	if m = w.next(); time.Since(began) < bodylessDelay/2 {
		t.Error("it came again at once")
	}
	w.do(m.Delivery.Ack(nil))
}

// A message whose stored body is not there stays away for long, or goes back when its durable drains.
func TestArrival_LookUp_theBodyIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.draining.Store(true)
	m := w.publish(nil) // without the headers that say where its body is
	m.Elsewhere = true
	body := m.Data
	if m.Data = nil; m.parkUnread() {
		t.Error("it is parked without its body")
	}
	m.Data = body
	if rec := w.lookUp(m); rec != nil {
		t.Errorf("%+v", rec)
	}
	if m = w.next(); m.Delivery.Deliveries != 2 {
		t.Errorf("delivery %d", m.Delivery.Deliveries)
	}
}

// A message whose stored body is gone stays away for long. One whose headers name no body is a dead letter, as it came.
func TestArrival_LookUp_theStoredBodyIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sum := strings.Repeat("0", 64)
	for dead, name := range []string{sum, "../etc"} {
		m := w.publish(nil)
		m.Delivery.Msg.Header = nats.Header{"Relay-Body": {name}, "Relay-Body-SHA256": {sum}, "Relay-Body-Size": {"7"}}
		m.Elsewhere = true
		if rec := w.lookUp(m); rec != nil {
			t.Errorf("%s: %+v", name, rec)
		}
		w.eventually(name+" has its end", func() bool { return w.durable.Session.Stats().Live == 0 && w.durable.Session.Stats().Unconfirmed == 0 })
		if got := len(w.dead()); got != dead {
			t.Errorf("%s: %d dead letters", name, got)
		}
	}
}

// A message goes into its partition, and is acknowledged when it is there. While that does not work, it comes again.
func TestArrival_ToPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := partition.Generation{Service: "relay", Route: "billing", Number: 1, Layout: partition.Layout{Count: 1, Key: "subject", Subjects: []string{"orders.>"}, Stream: "ORDERS", Durable: "billing"}}
	part := &generations.Part{Route: "billing", Stream: "ORDERS", Durable: "billing", Of: g}
	m := w.publish(nil)
	m.ToPartition(&w.Route, part) // there is no stream yet
	m = w.next()
	_, err := g.Make(t.Context(), w.js, partition.Start{Sequence: 100}, 1)
	w.do(err)
	m.ToPartition(&w.Route, part)
	w.settled()
	stream, err := w.js.Stream(t.Context(), g.Name())
	w.do(err)
	got, err := stream.GetLastMsgForSubject(t.Context(), g.Moved("orders.eu"))
	w.do(err)
	if string(got.Data) != "seven" {
		t.Errorf("in the partition: %q", got.Data)
	}
}

// A copy is what it is a copy of. What is neither a copy nor put there by relay is a dead letter.
func TestArrival_OfPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	part := &generations.Part{Route: "billing", Stream: "ORDERS", Durable: "billing"}
	copied := w.publish(nil)
	copied.Header = nats.Header{partition.SourceHeader: {"ORDERS:x 41 > > orders.eu"}} // which only the server may set
	copied.Subject = "relay.part.billing.1.0.c.orders.eu"
	if !copied.OfPartition(part) || copied.Subject != "orders.eu" || copied.Header != nil || copied.Origin == nil || copied.Origin.Sequence != 41 || copied.Origin.Route != "billing" {
		t.Errorf("a copy: %+v of %+v", copied.Subject, copied.Origin)
	}
	w.do(copied.Delivery.Ack(nil))
	origin := retry.Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 7, Time: time.Now(), Subject: "orders.us", Attempts: 2}
	moved := w.publish(retry.Wrap(origin, nats.Header{"A": {"b"}}))
	moved.Subject = "relay.part.billing.1.0.m.orders.us"
	if !moved.OfPartition(part) || !moved.Moved || moved.Subject != "orders.us" || moved.Origin.Attempts != 2 || moved.Header.Get("A") != "b" {
		t.Errorf("one that was moved: %q, %+v, %v", moved.Subject, moved.Origin, moved.Header)
	}
	w.do(moved.Delivery.Ack(nil))
	for subject, header := range map[string]nats.Header{"relay.part.billing.1.0.c.orders.eu": nil, "relay.part.billing.1.0.m.orders.eu": {"A": {"b"}}, "somewhere": nil} {
		m := w.publish(header)
		if m.Subject = subject; m.OfPartition(part) {
			t.Errorf("%s, %v is one of the partition", subject, header)
		}
	}
	w.settled()
	if n := len(w.dead()); n != 3 {
		t.Errorf("%d dead letters", n)
	}
}

// straying are the strays of the durable; what of them another durable has, is told by elsewhere.
func (w *world) straying(elsewhere bool) (s *Strays, moved *atomic.Int64) {
	moved = new(atomic.Int64)
	inner := strays.New(w.Log, func() {})
	inner.Learn([]string{"orders.>"}, []strays.Wanted{{Pattern: "orders.>", Route: "shipping"}}, time.Now())
	w.t.Cleanup(inner.Wait)
	return &Strays{
		Strays: inner, Durable: &w.durable, Count: func() {}, Doubt: func() {},
		Elsewhere: func(string, uint64) bool { return elsewhere }, Moved: func() { moved.Add(1) },
	}, moved
}

// A delivery of a partition that is of no use before it is read: its key waits for it, and not the key that its subject in the stream would have.
func TestArrival_LetGo_regressionThePartitionHasTheKeyOfItsOwnSubject(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"c", "m"} {
		w := newWorld(t)
		w.Part = true
		_, err := w.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>", "relay.part.billing.>"}})
		w.do(err)
		_, err = w.js.Publish(t.Context(), "relay.part.billing.3.0."+how+".orders.eu", nil)
		w.do(err)
		m := w.next()
		if m.LetGo(&w.Route); w.of.Load() != "orders.eu" || w.expected.Load() != m.Delivery.Sequence {
			t.Errorf("%v of %v is expected", w.expected.Load(), w.of.Load())
		}
		m.Subject = "orders.eu"
		if m.LetGo(&w.Route); w.of.Load() != "orders.eu" {
			t.Errorf("read: %v is expected", w.of.Load())
		}
	}
}

// A stray goes back for other instances at first. Then the retry stream keeps it for its route, unless another durable brings it here.
func TestStrays_Take(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		w := newWorld(t)
		s, moved := w.straying(elsewhere)
		m := w.publish(nil)
		s.Take(m, nil)
		if m = w.next(); m.Delivery.Deliveries != 2 {
			t.Errorf("delivery %d after it went back", m.Delivery.Deliveries)
		}
		m.Delivery.Deliveries = 100
		s.Take(m, nil)
		w.settled()
		kept, err := w.Stores.Retries.Kept(t.Context())
		w.do(err)
		switch {
		case elsewhere && (len(kept) != 0 || moved.Load() != 1):
			t.Errorf("another durable brings it: %+v, %d", kept, moved.Load())
		case !elsewhere && (len(kept) != 1 || kept[0].Route != "shipping" || kept[0].Stream != "ORDERS"):
			t.Errorf("kept: %+v", kept)
		}
	}
}

// What was wrapped for another route is kept for it as it is. What came without its body goes back.
func TestStrays_Take_wrapped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _ := w.straying(false)
	origin := retry.Origin{Route: "shipping", Stream: "ORDERS", Consumer: "shipping", Sequence: 7, Time: time.Now(), Subject: "orders.us", Attempts: 2}
	m := w.publish(retry.Wrap(origin, nil))
	m.Bodyless = true
	s.Take(m, &origin)
	m = w.next()
	m.Delivery.Deliveries = 100
	s.Take(m, &origin)
	w.settled()
	if kept, err := w.Stores.Retries.Kept(t.Context()); err != nil || len(kept) != 1 || kept[0].Route != "shipping" {
		t.Errorf("kept: %+v, %v", kept, err)
	}
}

// What may have ended a process is not kept in the retry stream, which knows nothing of that: it stays away.
func TestStrays_Take_suspect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _ := w.straying(false)
	m := w.publish(nil)
	m.Delivery.Deliveries = 100
	w.do(w.durable.Records.Put(t.Context(), m.Delivery.Sequence, 1, retry.Record{Attempts: 1, Crashes: 1}))
	s.Take(m, nil)
	w.eventually("it was given back", func() bool { return w.durable.Session.Stats().Confirmed > 0 })
	if kept, err := w.Stores.Retries.Kept(t.Context()); err != nil || len(kept) != 0 {
		t.Errorf("kept: %+v, %v", kept, err)
	}
}
