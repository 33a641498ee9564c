package generations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// world has a stream for orders.>, whose keys are to be divided.
type world struct {
	t     *testing.T
	js    jetstream.JetStream
	maker Maker
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := natstest.Start(t)
	w := &world{t: t, js: s.JetStream(t)}
	w.maker = Maker{Conn: s.Conn(t), JS: w.js, API: "$JS.API.", Service: "relay", Replicas: 1, Log: slog.New(slog.DiscardHandler)}
	_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowDirect: true})
	w.do(err)
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(n int) {
	w.t.Helper()
	for i := range n {
		_, err := w.js.Publish(w.t.Context(), fmt.Sprintf("orders.k%d.paid", i), nil)
		w.do(err)
	}
}

// wanted is a route with so many partitions that begins there.
func wanted(count int, start Start) Wanted {
	return Wanted{
		Route: "billing", Layout: partition.Layout{Count: count, Key: "{2}", Subjects: []string{"orders.*.>"}, Stream: "ORDERS", Durable: "billing"},
		Start: start,
	}
}

// A first generation begins where the durable of the route is, else where the configuration says, and else with what comes: never in the midst of
// messages about which nobody decided.
func TestMaker_Start(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from, err := w.js.Stream(t.Context(), "ORDERS")
	w.do(err)
	start := func(want Wanted) (uint64, error) {
		_, err := from.Info(t.Context())
		w.do(err)
		s, err := w.maker.Start(t.Context(), want, from)
		return s.Sequence, err
	}
	if seq, err := start(wanted(4, Start{})); seq != 1 || err != nil {
		t.Errorf("of an empty stream: %d, %v", seq, err)
	}
	w.publish(5)
	if _, err := start(wanted(4, Start{})); err == nil || !strings.Contains(err.Error(), "already holds 5 messages for orders.*.>") {
		t.Errorf("of one with messages: %v", err)
	}
	if seq, err := start(wanted(4, Start{Policy: "new"})); seq != 6 || err != nil {
		t.Errorf("with new ones: %d, %v", seq, err)
	}
	if seq, err := start(wanted(4, Start{Policy: "seq", Seq: 3})); seq != 3 || err != nil {
		t.Errorf("with a sequence: %d, %v", seq, err)
	}
	foreign := jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy}
	_, err = from.CreateConsumer(t.Context(), foreign)
	w.do(err)
	if seq, err := start(wanted(4, Start{Policy: "seq", Seq: 3})); seq != 3 || err != nil {
		t.Errorf("with a durable of somebody else: %d, %v", seq, err)
	}
	foreign.Metadata = map[string]string{"relay.service": "relay"}
	c, err := from.UpdateConsumer(t.Context(), foreign)
	w.do(err)
	batch, err := c.Fetch(2)
	w.do(err)
	for m := range batch.Messages() {
		w.do(m.DoubleAck(t.Context()))
	}
	if seq, err := start(wanted(4, Start{Policy: "seq", Seq: 5})); seq != 3 || err != nil {
		t.Errorf("with a durable of the route: %d, %v", seq, err)
	}
}

// Nothing is made to see whether it could be, nor from a stream that cannot be copied.
func TestMaker_Next(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.maker.Check(t.Context(), nil, wanted(4, Start{})); err != nil {
		t.Error(err)
	}
	if list, err := partition.Find(t.Context(), w.js, "relay", "billing"); len(list) > 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	first, err := w.maker.Next(t.Context(), nil, wanted(4, Start{}))
	if err != nil || len(first) != 1 || first[0].Number != 1 || first[0].Name() != "RELAY_BILLING_G1" || !first[0].Sources() {
		t.Fatalf("%v, %v", first, err)
	}
	second, err := w.maker.Next(t.Context(), first, wanted(7, Start{}))
	if err != nil || len(second) != 2 || second[1].Number != 2 || second[1].Count != 7 || second[1].Sources() {
		t.Fatalf("%v, %v", second, err)
	}
	list, err := partition.Find(t.Context(), w.js, "relay", "billing")
	if err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := w.maker.Next(t.Context(), first, wanted(5, Start{})); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		t.Errorf("another instance was faster: %v", err)
	}
	queue := wanted(4, Start{})
	queue.Stream = "QUEUE"
	if err := w.maker.Check(t.Context(), nil, queue); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without its stream: %v", err)
	}
	_, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue.>"}, Retention: jetstream.WorkQueuePolicy})
	w.do(err)
	if err := w.maker.Check(t.Context(), nil, queue); err == nil || !strings.Contains(err.Error(), "set retention to limits") {
		t.Errorf("from a work queue: %v", err)
	}
}

// follower is an instance that follows the generations of one route.
type follower struct {
	*Watch
	mu     sync.Mutex
	route  *Route
	tends  bool
	before bool // somebody has partitions of an earlier generation
	anew   int
	errs   []error
}

// follow has an instance follow until the test ends.
func (w *world) follow(tends bool, streams []*partition.Stream) *follower {
	f := &follower{route: New(w.js, "billing", streams), tends: tends}
	locked := func(is func() bool) func(*Route) bool {
		return func(*Route) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return is()
		}
	}
	f.Watch = NewWatch(Config{
		JS: w.js, Service: "relay",
		Routes: func() []*Route {
			f.mu.Lock()
			defer f.mu.Unlock()
			return []*Route{f.route}
		},
		Changed: func() <-chan struct{} { return nil }, Further: func(*Route) bool { return false },
		Tends: locked(func() bool { return f.tends }), Earlier: locked(func() bool { return f.before }),
		Anew: func(ctx context.Context, was *Route) error {
			list, err := partition.Find(ctx, w.js, "relay", was.Name)
			if err != nil {
				return err
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.anew++
			f.route = New(w.js, was.Name, partition.Running(list))
			f.route.Follow(was)
			return nil
		},
		Looked: func(_ *Route, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if err != nil {
				f.errs = append(f.errs, err)
			}
		},
		EachSecond: func(context.Context, *Route) {},
	})
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	return f
}

// has waits until the instance is at that generation, with so many that run.
func (f *follower) has(t *testing.T, number, running int) {
	t.Helper()
	natstest.Eventually(t, fmt.Sprintf("it is at generation %d with %d", number, running), func() bool {
		f.Soon()
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.route.Newest().Number == number && len(f.route.Streams) == running
	}, &f.errs)
}

// eventually has both instances look again and again until it is.
func (w *world) eventually(what string, is func() bool, looks ...*follower) {
	w.t.Helper()
	natstest.Eventually(w.t, what, func() bool {
		if is() {
			return true
		}
		for _, f := range looks {
			f.Soon()
		}
		return false
	})
}

func (w *world) messages(stream string) uint64 {
	s, err := w.js.Stream(w.t.Context(), stream)
	w.do(err)
	return s.CachedInfo().State.Msgs
}

// Another number of partitions: all instances follow. When all of the former generation is settled, the one that tends them has the copies go on in the
// new one, and deletes the former one once nobody works on it any more.
func TestWatch_newGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, err := w.maker.Next(t.Context(), nil, wanted(4, Start{}))
	w.do(err)
	old, err := w.js.Stream(t.Context(), "RELAY_BILLING_G1")
	w.do(err)
	var parts []jetstream.Consumer
	for n := range 4 {
		c, err := old.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: first[0].DurableOf(n), FilterSubject: first[0].Part(n), AckPolicy: jetstream.AckExplicitPolicy})
		w.do(err)
		parts = append(parts, c)
	}
	w.publish(40)
	w.eventually("all are copied", func() bool { return w.messages("RELAY_BILLING_G1") == 40 })
	tends, follows := w.follow(true, first), w.follow(false, first)
	tends.mu.Lock()
	tends.before = true
	tends.mu.Unlock()
	_, err = w.maker.Next(t.Context(), first, wanted(3, Start{}))
	w.do(err)
	tends.has(t, 2, 2)
	follows.has(t, 2, 2)
	for _, c := range parts {
		batch, err := c.FetchNoWait(100)
		w.do(err)
		for m := range batch.Messages() {
			w.do(m.DoubleAck(t.Context()))
		}
	}
	tends.has(t, 2, 1)
	follows.has(t, 2, 1)
	w.publish(10)
	w.eventually("copies go on in the new generation", func() bool { return w.messages("RELAY_BILLING_G2") >= 10 }, tends, follows)
	if _, err := w.js.Stream(t.Context(), "RELAY_BILLING_G1"); err != nil {
		t.Errorf("it is deleted although somebody works on it: %v", err)
	}
	tends.mu.Lock()
	tends.before = false
	tends.mu.Unlock()
	w.eventually("the former one is deleted", func() bool {
		_, err := w.js.Stream(t.Context(), "RELAY_BILLING_G1")
		return errors.Is(err, jetstream.ErrStreamNotFound)
	}, tends, follows)
	w.eventually("the one that tends them says that all is copied", func() bool {
		tends.mu.Lock()
		defer tends.mu.Unlock()
		return tends.route.Behind() == 0
	}, tends)
	if n := follows.route.Behind(); n != -1 {
		t.Errorf("one that does not tend them says how far the copies are: %d", n)
	}
	for _, f := range []*follower{tends, follows} {
		f.mu.Lock()
		if f.anew < 2 || len(f.errs) > 0 {
			t.Errorf("followed %d times; errors: %v", f.anew, f.errs)
		}
		f.mu.Unlock()
	}
}

// The server hears of the stream that it copies every second (seen on 2.15.2). When it does not, the route says so; so it does when the server does not say.
func TestRoute_copiesThatStandStillAreTold(t *testing.T) {
	d := new(Route)
	s := &partition.Stream{Generation: partition.Generation{Service: "relay", Route: "billing", Number: 1, Layout: partition.Layout{Stream: "ORDERS"}}}
	info := func(lag uint64, active time.Duration) {
		s.Info = &jetstream.StreamInfo{
			Config:  jetstream.StreamConfig{Sources: []*jetstream.StreamSource{{Name: "ORDERS", SubjectTransforms: []jetstream.SubjectTransformConfig{{}}}}},
			Sources: []*jetstream.StreamSourceInfo{{Name: "ORDERS", Lag: lag, Active: active}},
		}
	}
	now := time.Now()
	if info(7, time.Second); d.copies(s, now) != nil || d.behind.Load() != 7 {
		t.Errorf("%d behind", d.behind.Load())
	}
	info(9, silentFor)
	if err := d.copies(s, now); err == nil || !strings.Contains(err.Error(), "nats stream info RELAY_BILLING_G1") {
		t.Error(err)
	}
	info(0, -1) // it has not found the stream yet
	if err := d.copies(s, now); err != nil {
		t.Error(err)
	}
	if err := d.copies(s, now.Add(silentFor)); err == nil {
		t.Error("it never finds the stream, and nobody says so")
	}
	if info(0, time.Second); d.copies(s, now) != nil || !d.unheard.IsZero() {
		t.Error("it goes on, and is not believed")
	}
}
