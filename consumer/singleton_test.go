package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// single is a service of several instances with one route of which one instance at a time handles messages, each on a link of its own. Its
// handlers compare what they see with what must be.
type single struct {
	*world
	route Route

	mu     sync.Mutex
	who    map[string]int    // starts by instance
	starts map[uint64]int    // by sequence
	last   map[string]uint64 // sequence that was handled last, by key
	fence  uint64
	faults []string
	hold   atomic.Pointer[chan struct{}] // handlers wait for it, if it is set
	begun  chan uint64                   // sequences of handlers that wait
}

func newSingle(t *testing.T) *single {
	return &single{
		world: newWorld(t), who: map[string]int{}, starts: map[uint64]int{}, last: map[string]uint64{}, begun: make(chan uint64, 1000),
		route: Route{Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Instances: InstancesOne, Concurrency: 4, AckWait: 20 * time.Second},
	}
}

func (s *single) fault(format string, args ...any) {
	if len(s.faults) < 10 {
		s.faults = append(s.faults, fmt.Sprintf(format, args...))
	}
}

// handler is that of an instance.
func (s *single) handler(instance string) Handler {
	return HandlerFunc(func(ctx context.Context, m *Msg) error {
		s.mu.Lock()
		if m.Fence < s.fence || m.Fence == 0 {
			s.fault("%s starts %d with fence %d after %d", instance, m.Sequence, m.Fence, s.fence)
		}
		s.fence = m.Fence
		s.starts[m.Sequence]++
		s.who[instance]++
		if s.route.Order == supervisor.OrderKey && m.Sequence < s.last[m.Subject] {
			s.fault("%s starts %d of %s after %d", instance, m.Sequence, m.Subject, s.last[m.Subject])
		}
		if m.Header != nil {
			s.fault("headers %v", m.Header)
		}
		hold := s.hold.Load()
		s.mu.Unlock()
		if hold != nil {
			s.begun <- m.Sequence
			select {
			case <-*hold:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		s.mu.Lock()
		s.last[m.Subject] = max(s.last[m.Subject], m.Sequence)
		s.mu.Unlock()
		return nil
	})
}

// instance runs one, on a link that can be stalled.
func (s *single) instance(name string) (r *Relay, link *natstest.Proxy, stop func() error) {
	s.t.Helper()
	return s.instanceWith(name, s.handler(name))
}

func (s *single) instanceWith(name string, h Handler) (r *Relay, link *natstest.Proxy, stop func() error) {
	s.t.Helper()
	route := s.route
	route.Handler = h
	return s.linked(name, slog.LevelDebug, route)
}

// linked runs an instance on a link of its own, which can be stalled.
func (w *world) linked(name string, level slog.Level, route Route) (r *Relay, link *natstest.Proxy, stop func() error) {
	w.t.Helper()
	link = natstest.NewProxy(w.t, w.s.Addr())
	nc, err := nats.Connect(link.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		w.t.Fatal(err)
	}
	r, err = New(nc, Config{Instance: name, Logger: slog.New(slog.NewTextHandler(testLog{w.t}, &slog.HandlerOptions{Level: level})).With("at", name), Drain: 5 * time.Second}, route)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		nc.Close()
		return err
	})
	w.t.Cleanup(func() {
		link.Resume()
		_ = stop()
	})
	return r, link, stop
}

// holder waits until all agree on who has the route.
func (s *single) holder(all map[string]*Relay) (name string) {
	s.t.Helper()
	s.eventually("one has the route", func() bool {
		names := map[string]bool{}
		for _, r := range all {
			h := r.Status().Routes[0].Holder
			names[h.Instance] = true
			if h.Here {
				name = h.Instance
			}
			if len(h.Standbys) != len(all)-1 {
				return false
			}
		}
		return len(names) == 1 && name != ""
	})
	return name
}

func (s *single) handled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.starts)
}

func (s *single) check() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		s.t.Error(f)
	}
}

func TestSingleton_oneHandlesAndAStandbyTakesOver(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.publish("orders.eu", 50)
	all, links, stops := map[string]*Relay{}, map[string]*natstest.Proxy{}, map[string]func() error{}
	for _, name := range []string{"a", "b", "c"} {
		all[name], links[name], stops[name] = s.instance(name)
	}
	first := s.holder(all)
	s.eventually("all are handled", func() bool { return s.handled() == 50 })
	s.settled("ORDERS", "billing")
	for name, r := range all {
		st := r.Status().Routes[0]
		want := control.StateStandby
		if name == first {
			want = control.StateFlowing
		} else if err := r.Ready(); err != nil {
			t.Errorf("a standby is not ready: %v", err)
		}
		if st.State != want {
			t.Errorf("%s is %s: %s", name, st.State, st.Why)
		}
	}

	// A clean end: the next one at once, and nothing twice.
	began := time.Now()
	if err := stops[first](); err != nil {
		t.Error(err)
	}
	delete(all, first)
	second := s.holder(all)
	t.Logf("%s after %s in %v", second, first, time.Since(began))
	s.publish("orders.eu", 50)
	s.eventually("all are handled", func() bool { return s.handled() == 100 })
	s.settled("ORDERS", "billing")

	// A holder that is cut off with handlers at work: they are cancelled, and what it had in hand comes to the next at once and not after
	// AckWait.
	hold := make(chan struct{})
	s.hold.Store(&hold)
	s.publish("orders.eu", 4)
	for range 4 {
		<-s.begun
	}
	began = time.Now()
	links[second].Stall()
	s.hold.Store(nil)
	delete(all, second)
	third := s.holder(all)
	s.eventually("what the second had in hand is handled", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.who[third] == 4
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	t.Logf("%s after %s in %v", third, second, time.Since(began))
	s.settled("ORDERS", "billing")
	links[second].Resume()
	close(hold)
	s.publish("orders.eu", 10)
	s.eventually("all are handled", func() bool { return s.handled() == 114 })
	s.check()
	for seq, n := range s.starts {
		if n > 1 && (seq <= 100 || seq > 104) || n > 2 {
			t.Errorf("message %d was started %d times", seq, n)
		}
	}
}

// The durables of a route that changes from all instances to one and back are relay's own: nobody has to be asked.
func TestSingleton_durablesAreChangedByThemselves(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	for n, instances := range []string{instancesAll, InstancesOne, instancesAll} {
		route := s.route
		route.Instances = instances
		var count atomic.Int64
		route.Handler = HandlerFunc(func(context.Context, *Msg) error { count.Add(1); return nil })
		_, stop := s.start(Config{}, route)
		s.publish("orders.eu", 5)
		s.eventually("all are handled", func() bool { return count.Load() == 5 })
		for stream, durable := range map[string]string{"ORDERS": "billing", "RELAY_RETRY": "billing--ORDERS"} {
			want := jetstream.PriorityPolicyNone
			if instances == InstancesOne {
				want = jetstream.PriorityPolicyPinned
			}
			if got := s.info(stream, durable).Config.PriorityPolicy; got != want {
				t.Errorf("round %d: durable %s on %s has the policy %v", n, durable, stream, got)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// While one instance pulls alone, one with an older configuration must not pull beside it, and says why.
func TestSingleton_anInstanceThatPullsLikeAllStops(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	route := s.route
	var before atomic.Int64 // by what the older one had asked for
	route.Instances, route.Handler = instancesAll, HandlerFunc(func(context.Context, *Msg) error { before.Add(1); return nil })
	old, _ := s.start(Config{}, route)
	a, _, _ := s.instance("a")
	s.holder(map[string]*Relay{"a": a})
	s.unready(old, "priority_policy is pinned_client (relay), not none")
	s.publish("orders.eu", 20)
	s.eventually("all are handled", func() bool { return s.handled()+int(before.Load()) == 20 && s.handled() > 0 })
	s.check()
}

// A service whose bucket is gone: the route stops and says so, the others go on, and it heals by itself.
func TestSingleton_withoutTheBucket(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.stream("OTHER", "other.>")
	var others atomic.Int64
	route := s.route
	route.Handler = s.handler("a")
	r, _ := s.start(Config{Instance: "a"}, route, Route{Name: "other", Subjects: []string{"other.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		others.Add(1)
		return nil
	})})
	s.holder(map[string]*Relay{"a": r})
	sub, err := s.nc.SubscribeSync("$JS.API.STREAM.CREATE.KV_RELAY_FLEET") // there is nobody to make it again meanwhile
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := s.js.DeleteStream(t.Context(), "KV_RELAY_FLEET"); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is said", func() bool { return r.Ready() != nil && r.Status().Routes[0].State == control.StateStopped })
	s.publish("other.x", 3)
	s.eventually("the other route goes on", func() bool { return others.Load() == 3 })
	s.publish("orders.eu", 3)
	s.eventually("the bucket is made again, and all are handled", func() bool { return s.handled() == 3 })
	s.eventually("it is ready again", func() bool { return r.Ready() == nil })
	s.check()
}

// What a holder left unfinished comes to the next one before later messages of its key, and at once.
func TestSingleton_orderHoldsOverATakeover(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.route.Order, s.route.Concurrency, s.route.AckWait = supervisor.OrderKey, 16, time.Minute
	all, links := map[string]*Relay{}, map[string]*natstest.Proxy{}
	for _, name := range []string{"a", "b"} {
		all[name], links[name], _ = s.instance(name)
	}
	first := s.holder(all)
	hold := make(chan struct{})
	defer close(hold)
	s.hold.Store(&hold)
	for range 10 {
		for key := range 8 {
			s.publish(fmt.Sprintf("orders.%d", key), 1)
		}
	}
	for range 8 {
		<-s.begun
	}
	began := time.Now()
	links[first].Stall()
	s.hold.Store(nil)
	s.eventually("all are handled", func() bool { return s.handled() == 80 })
	s.settled("ORDERS", "billing")
	if took := time.Since(began); took > 40*time.Second { // AckWait is a minute
		t.Errorf("it took %v", took)
	}
	s.check()
}

// With order: key a second instance got messages that had to wait for those of the first one: a service of two did a tenth of what one did, and
// nothing after a while.
func TestSingleton_regressionASecondInstanceSlowsNoOrderedRoute(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.route.Instances, s.route.Order = "", supervisor.OrderKey
	a, _, _ := s.instance("a")
	s.holder(map[string]*Relay{"a": a})
	const keys, each = 50, 20
	publish := func() {
		for i := range keys * each {
			s.publish(fmt.Sprint("orders.", i%keys), 1)
		}
	}
	began := time.Now()
	publish()
	s.eventually("one instance handles all", func() bool { return s.handled() == keys*each })
	alone := time.Since(began)
	_, _, stop := s.instance("b")
	_, _, _ = s.instance("c")
	began = time.Now()
	publish()
	s.eventually("three handle all", func() bool { return s.handled() == 2*keys*each })
	if took := time.Since(began); took > max(20*time.Second, 3*alone) { // a busy machine takes as long for one
		t.Errorf("it took %v, and one instance %v", took, alone)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	publish()
	s.eventually("two handle all", func() bool { return s.handled() == 3*keys*each })
	s.check()
}

// A route with instances: one changes in place, too: where it is held while an old handler hangs, and where it stands by for the takeover.
func TestSingleton_changesInPlace(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	stuck := make(chan struct{})
	defer close(stuck)
	old := &worker{handle: func(ctx context.Context, m *Msg) error {
		select {
		case <-stuck:
		case <-ctx.Done():
		}
		return ctx.Err()
	}}
	next := map[string]*worker{"a": {}, "b": {}}
	s.route.Timeout = 20 * time.Second
	a, _, stopA := s.instanceWith("a", old)
	s.holder(map[string]*Relay{"a": a})
	b, _, _ := s.instanceWith("b", old)
	s.eventually("the other one stands by", func() bool { return b.Status().Routes[0].State == control.StateStandby })
	route := s.route
	s.publish("orders.hangs", 1)
	s.eventually("a handler hangs", func() bool { return old.busy.Load() == 1 })
	for name, r := range map[string]*Relay{"a": a, "b": b} {
		route.Handler, route.Concurrency = next[name], 7
		changeLive(t, r, route)
	}
	s.publish("orders.eu", 3)
	s.eventually("the new handler has them", func() bool { return next["a"].handled.Load() == 3 })
	go func() { _ = stopA() }()
	s.eventually("the holder starts nothing more", func() bool { return a.Status().Draining })
	s.publish("orders.us", 3)
	s.eventually("so has that of the standby, also of what hung", func() bool {
		return next["b"].handled.Load() > 0 && next["a"].handled.Load()+next["b"].handled.Load() >= 7
	})
}

// farStream makes a stream of which hold messages wait on far.held, 4 at a place, spread over a range of sequences of which no other has a message, and
// which ends with quick ones on far.quick. A mirror keeps what its origin has purged, and skips what its origin has skipped.
func (s *single) farStream(hold int, distance uint64) (last uint64) {
	s.t.Helper()
	const together = 4
	ctx := s.t.Context()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	origin, err := s.js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORIGIN", Subjects: []string{"far.>"}, Storage: jetstream.MemoryStorage})
	must(err)
	mirror, err := s.js.CreateStream(ctx, jetstream.StreamConfig{Name: "FAR", Mirror: &jetstream.StreamSource{Name: "ORIGIN"}, Storage: jetstream.MemoryStorage})
	must(err)
	publish := func(subject string, n int) {
		s.t.Helper()
		for range n {
			ack, err := s.js.Publish(ctx, subject, nil)
			must(err)
			last = ack.Sequence
		}
		s.eventually("the mirror has it", func() bool {
			info, err := mirror.Info(ctx)
			return err == nil && info.State.LastSeq == last
		})
	}
	for range hold / together {
		publish("far.held", together)
		must(origin.Purge(ctx, jetstream.WithPurgeSequence(last+distance*together/uint64(hold))))
	}
	publish("far.quick", 20)
	return last
}

// takeOverFar is how long a takeover takes, from the moment at which the holder is cut off until all that it had is handled.
// With before, something is done while it holds the messages.
func takeOverFar(t *testing.T, hold int, distance uint64, before func(*single)) time.Duration {
	s := newSingle(t)
	s.route.Stream, s.route.Subjects, s.route.AckWait, s.route.Concurrency = "FAR", []string{"far.>"}, 2*time.Minute, 2*hold
	last := s.farStream(hold, distance)
	release := make(chan struct{})
	defer close(release)
	var second atomic.Bool
	all, links := map[string]*Relay{}, map[string]*natstest.Proxy{}
	for _, name := range []string{"a", "b"} {
		plain := s.handler(name)
		all[name], links[name], _ = s.instanceWith(name, elsewhere(func(ctx context.Context, m *Msg) error { // what comes again need not run alone
			if m.Subject == "far.held" && !second.Load() {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			return plain.Handle(ctx, m)
		}))
	}
	first := s.holder(all)
	stream, err := s.js.Stream(t.Context(), "FAR")
	if err != nil {
		t.Fatal(err)
	}
	durable, err := stream.Consumer(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	s.eventually("all but the messages that are held are settled", func() bool {
		info, err := durable.Info(t.Context())
		return err == nil && info.Delivered.Stream == last && info.NumAckPending == hold && s.handled() == 20
	})
	before(s)
	second.Store(true)
	began := time.Now()
	links[first].Stall()
	s.eventually("all are handled", func() bool { return s.handled() == hold+20 })
	took := time.Since(began)
	s.settled("FAR", "billing")
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq, n := range s.starts {
		if n != 1 {
			t.Errorf("%d was handled %d times", seq, n)
		}
	}
	return took
}

// inHand waits for the note of what the holder has in hand.
func (s *single) inHand(n int) {
	s.t.Helper()
	durable, err := s.js.Consumer(s.t.Context(), "FAR", "billing")
	if err != nil {
		s.t.Fatal(err)
	}
	bucket, err := retry.OpenBucket(s.t.Context(), s.js, "RELAY_ATTEMPTS", 1)
	if err != nil {
		s.t.Fatal(err)
	}
	records := bucket.Records("FAR", "billing", durable.CachedInfo().Created)
	s.eventually("it is noted", func() bool {
		h, err := records.InHand(s.t.Context())
		return err == nil && len(h.Unsettled) == n
	})
}

// When the oldest unsettled message was 65,536 sequences or more behind the newest that was delivered, nothing was given back, and a takeover
// took ack_wait.
func TestSingleton_regressionATakeoverFarBehind(t *testing.T) {
	t.Parallel()
	took := takeOverFar(t, 200, 5_000_000, func(s *single) { s.inHand(200) })
	t.Logf("it took %v", took)
	if took > 40*time.Second { // the lease is 2 s, ack_wait two minutes, and the machine may be busy
		t.Errorf("it took %v", took)
	}
}

// The holder before was of an earlier version, which notes nothing: everything between is named.
func TestSingleton_regressionATakeoverFarBehindWithoutANote(t *testing.T) {
	t.Parallel()
	took := takeOverFar(t, 40, 300_000, func(s *single) {
		s.inHand(40)
		bucket, err := s.js.KeyValue(t.Context(), "RELAY_ATTEMPTS")
		if err == nil {
			err = bucket.Purge(t.Context(), "hand.FAR.billing")
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("it took %v", took)
	if took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// steal takes a message from under the holder's nose. It returns how many it published for that.
func (s *single) steal(subject string) (n int) {
	s.t.Helper()
	thief := s.s.Conn(s.t)
	inbox := thief.NewInbox()
	got, err := thief.SubscribeSync(inbox)
	if err != nil {
		s.t.Fatal(err)
	}
	for { // until it is faster than the holder
		if _, err := thief.Request("$JS.API.CONSUMER.UNPIN.ORDERS.billing", []byte(`{"group":"relay"}`), 5*time.Second); err != nil {
			s.t.Fatal(err)
		}
		if err := thief.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", inbox, []byte(`{"batch":1,"expires":300000000,"group":"relay"}`)); err != nil {
			s.t.Fatal(err)
		}
		_ = thief.Flush()
		s.publish(subject, 1)
		n++
		if m, err := got.NextMsg(500 * time.Millisecond); err == nil && m.Reply != "" {
			return n
		}
	}
}

// While a message is missing many others come, and more are in hand than were outstanding when the server was asked. That was taken for all of them, and
// the messages after the missing one were handled before it.
func TestSingleton_regressionTrafficDoesNotFillAGap(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.route.Order, s.route.AckWait, s.route.Stash.Messages = supervisor.OrderKey, 2*time.Minute, 50_000
	r, _, _ := s.instance("a")
	s.holder(map[string]*Relay{"a": r})
	s.publish("orders.eu", 1)
	s.eventually("it is handled", func() bool { return s.handled() == 1 })
	n := 1 + s.steal("orders.eu")
	for began := time.Now(); time.Since(began) < time.Second; n += 50 {
		s.publish("orders.eu", 1)
		for i := range 49 {
			if _, err := s.js.PublishAsync(fmt.Sprintf("orders.%d", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		<-s.js.PublishAsyncComplete()
	}
	s.eventually("all are handled", func() bool { return s.handled() == n })
	s.check()
}

// What somebody else took from the durable of an ordered route is given back in the name of the holder, also when nobody has done so at the takeover: it does
// not wait for AckWait, and later messages of its key with it.
func TestSingleton_regressionWhatIsMissingIsGivenBackOnceMore(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.route.Order, s.route.AckWait = supervisor.OrderKey, 2*time.Minute
	r, _, _ := s.instance("a")
	s.holder(map[string]*Relay{"a": r})
	s.publish("orders.eu", 1)
	s.eventually("it is handled", func() bool { return s.handled() == 1 })
	n := 1 + s.steal("orders.eu")
	taken := time.Now()
	s.publish("orders.eu", 3)
	n += 3
	s.eventually("all are handled", func() bool { return s.handled() == n })
	if took := time.Since(taken); took > 40*time.Second {
		t.Errorf("it came after %v", took)
	}
	s.check()
}
