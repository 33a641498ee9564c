package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/supervisor"
)

// divisions is a service of several instances with one route that is divided, each on a link of its own. Its handlers hold what they see against what the
// order of keys permits.
type divisions struct {
	*world
	route Route

	mu      sync.Mutex
	who     map[string]int            // starts by instance
	where   map[string]map[string]int // starts by instance, by key
	starts  map[uint64]int            // by sequence
	running map[string]int            // by key
	done    map[string]uint64         // the last sequence that was handled, by key
	fails   map[uint64]int            // attempts that are to fail, by sequence
	waited  time.Duration
	takes   time.Duration
	faults  []string
}

func newDivisions(t *testing.T, count int, opts ...natstest.Option) *divisions {
	d := &divisions{
		world: newWorld(t, opts...), who: map[string]int{}, where: map[string]map[string]int{}, starts: map[uint64]int{}, running: map[string]int{}, done: map[string]uint64{},
		fails: map[uint64]int{},
		route: Route{
			Name: "billing", Subjects: []string{"orders.*.paid", "orders.*.sent"}, Key: "{2}", Order: supervisor.OrderKey, Partitions: count, Start: StartAll, AckWait: 20 * time.Second,
			Retry: Retry{Backoff: supervisor.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond}},
		},
	}
	if _, err := d.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Duplicates: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	return d
}

// tellMissing says of a test that failed which messages were not handled, and where those are that relay has.
func (d *divisions) tellMissing() {
	if !d.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	orders, err := d.js.Stream(ctx, "ORDERS")
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for seq := uint64(1); seq <= orders.CachedInfo().State.LastSeq; seq++ {
		if left := d.fails[seq]; d.starts[seq] == 0 || left >= 0 {
			m, err := orders.GetMsg(ctx, seq)
			if err != nil {
				d.t.Logf("message %d was not handled: %v", seq, err)
				continue
			}
			d.t.Logf("message %d of %s, of %v, was started %d times", seq, m.Subject, m.Time, d.starts[seq])
		}
	}
	for s := range d.js.ListStreams(ctx, jetstream.WithStreamListSubject("relay.part.>")).Info() {
		d.t.Logf("stream %s has %d messages, %d to %d", s.Config.Name, s.State.Msgs, s.State.FirstSeq, s.State.LastSeq)
		stream, err := d.js.Stream(ctx, s.Config.Name)
		if err != nil {
			continue
		}
		for c := range stream.ListConsumers(ctx).Info() {
			d.t.Logf("  durable %s: %d pending, %d outstanding, %d redelivered, %d pulls, floor %d, delivered %d", c.Name, c.NumPending, c.NumAckPending,
				c.NumRedelivered, c.NumWaiting, c.AckFloor.Stream, c.Delivered.Stream)
		}
	}
}

func (d *divisions) fault(format string, args ...any) {
	if len(d.faults) < 10 {
		d.faults = append(d.faults, fmt.Sprintf(format, args...))
	}
}

func (d *divisions) handler(instance string) Handler {
	return elsewhere(func(ctx context.Context, m *Msg) error {
		key := strings.Split(m.Subject, ".")[1]
		d.mu.Lock()
		d.starts[m.Sequence]++
		d.who[instance]++
		if d.where[instance] == nil {
			d.where[instance] = map[string]int{}
		}
		d.where[instance][key]++
		if d.waited = max(d.waited, time.Since(m.Time)); time.Since(m.Time) > 5*time.Second {
			d.t.Logf("%s starts %d of %s for the %dth time after %v", instance, m.Sequence, key, d.starts[m.Sequence], time.Since(m.Time))
		}
		if d.starts[m.Sequence] == 1 && m.Sequence < d.done[key] { // what comes again may come behind, in order
			d.fault("%s starts %d of %s after %d was done", instance, m.Sequence, key, d.done[key])
		}
		if m.Route != "billing" || m.Stream != "ORDERS" || m.Consumer != "billing" || m.Fence == 0 {
			d.fault("route %s, stream %s, consumer %s, fence %d", m.Route, m.Stream, m.Consumer, m.Fence)
		}
		if want := fmt.Sprint(key); string(m.Data) != want || m.Header.Get("Kept") != "1" || len(m.Header) != 2 {
			d.fault("message %d of %s has data %q and headers %v", m.Sequence, m.Subject, m.Data, m.Header)
		}
		fails := d.fails[m.Sequence] > 0
		d.fails[m.Sequence]--
		d.running[key]++
		takes := d.takes
		d.mu.Unlock()
		var err error
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			err = ctx.Err()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running[key]--
		if fails {
			return fmt.Errorf("told to fail")
		}
		if err == nil {
			d.done[key] = max(d.done[key], m.Sequence)
		}
		return err
	})
}

func (d *divisions) instance(name string) (r *Relay, link *natstest.Proxy, stop func() error) {
	d.t.Helper()
	route := d.route
	route.Handler = d.handler(name)
	return d.linked(name, slog.LevelInfo, route)
}

// send publishes messages of random keys. They have the ids of those that were sent before, which the user's stream forgets after 100 ms, or later on a
// busy machine.
func (d *divisions) send(n int) {
	d.t.Helper()
	time.Sleep(150 * time.Millisecond)
	for i := range n {
		key := fmt.Sprintf("k%d", rand.IntN(40))
		m := &nats.Msg{Subject: "orders." + key + []string{".paid", ".sent"}[rand.IntN(2)], Data: []byte(key), Header: nats.Header{"Kept": {"1"}, "Nats-Msg-Id": {fmt.Sprint(i)}}}
		for {
			stored, err := d.js.PublishMsg(d.t.Context(), m)
			if err != nil {
				d.t.Fatal(err)
			}
			if !stored.Duplicate {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func (d *divisions) handled() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.starts)
}

// check tells what was wrong, and how often messages were started more than once.
func (d *divisions) check() (twice int) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.faults {
		d.t.Error(f)
	}
	for _, n := range d.starts {
		twice += n - 1
	}
	return twice
}

// Three instances share the partitions of a route: each key is handled in order, by one of them, as what it was when it was published.
func TestPartitions_inOrderOverInstances(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 8)
	d.takes = time.Millisecond
	all := map[string]*Relay{}
	for _, name := range []string{"a", "b", "c"} {
		all[name], _, _ = d.instance(name)
	}
	d.shared(all, 8)
	for range 5 {
		d.send(100)
	}
	d.eventually("all are handled", func() bool { return d.handled() == 500 })
	if twice := d.check(); twice > 0 {
		t.Errorf("%d were started twice", twice)
	}
	t.Logf("%v, none waited for more than %v", d.who, d.waited)
	keys := map[string]int{}
	for name, list := range d.where {
		if name != "a" && name != "b" && name != "c" || len(list) == 0 {
			t.Errorf("instance %s has had %d keys", name, len(list))
		}
		for key := range list {
			keys[key]++
		}
	}
	for key, n := range keys {
		if n != 1 {
			t.Errorf("%d instances had key %s", n, key)
		}
	}
}

// shared waits until each instance has its share.
func (d *divisions) shared(all map[string]*Relay, count int) {
	d.t.Helper()
	d.eventually("each has its share", func() bool {
		sum := 0
		for _, r := range all {
			v := r.engine.Divided.Get("billing")
			if v == nil {
				return false
			}
			g := v.Newest().Generation
			p := peers.Divide(r.engine.Membership.Now(), g)
			least, most := p.Fair()
			own := p.Own()
			if len(v.Streams) != 1 || g.Count != count || p.Instances() != len(all) || own < least || own > most {
				return false
			}
			sum += own
		}
		return sum == count
	})
}

// Instances come, end and are cut off: no key is handled out of order, and nothing is lost.
func TestPartitions_instancesComeAndGo(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 8)
	d.takes = 2 * time.Millisecond
	all, links, stops := map[string]*Relay{}, map[string]*natstest.Proxy{}, map[string]func() error{}
	begin := func(name string) { all[name], links[name], stops[name] = d.instance(name) }
	begin("a")
	d.shared(all, 8)
	sent := 0
	send := func() {
		for range 4 {
			d.send(50)
			sent += 50
		}
	}
	traffic := func(what string, f func()) {
		d.t.Helper()
		d.mu.Lock()
		d.waited = 0
		d.mu.Unlock()
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		for going := true; going; {
			send()
			select {
			case <-done:
				going = false
			default:
			}
		}
		d.shared(all, 8)
		send()
		d.eventually("all are handled", func() bool { return d.handled() == sent })
		d.mu.Lock()
		defer d.mu.Unlock()
		t.Logf("%s: none waited for more than %v", what, d.waited)
	}
	traffic("two join: 3, 3 and 2", func() { begin("b"); begin("c"); time.Sleep(time.Second) })
	traffic("one ends", func() {
		if err := stops["b"](); err != nil {
			t.Error(err)
		}
		delete(all, "b")
	})
	if twice := d.check(); twice > 0 {
		t.Errorf("%d were started twice, and nobody was cut off", twice)
	}
	traffic("one is cut off", func() {
		links["c"].Stall()
		delete(all, "c")
		time.Sleep(3 * time.Second)
	})
	t.Logf("%d were started twice, by %v", d.check(), d.who)
}

// Another number of partitions: what the former ones still have is handed over in the order of its keys, also what fails and waits, and nothing is
// handled twice or lost.
func TestPartitions_growAndShrink(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 4)
	d.takes = time.Millisecond
	d.route.Retry.Backoff = supervisor.Backoff{Min: 5 * time.Second, Max: 6 * time.Second} // what fails once waits while the route is divided anew
	all := map[string]*Relay{}
	for _, name := range []string{"a", "b"} {
		all[name], _, _ = d.instance(name)
	}
	t.Cleanup(d.tellMissing)
	d.shared(all, 4)
	sent := 0
	for count, by := range map[int]string{7: "a", 2: "b"} {
		d.mu.Lock()
		d.fails[uint64(sent+10)], d.fails[uint64(sent+60)] = 1, 1
		d.mu.Unlock()
		d.send(100)
		sent += 100
		d.route.Partitions = count
		next := d.route
		next.Handler = d.handler(by)
		changed := make(chan error, 1)
		go func() {
			_, err := all[by].Change(t.Context(), Change{Update: []Route{next}})
			changed <- err
		}()
		for going := true; going; {
			d.send(50)
			sent += 50
			select {
			case err := <-changed:
				if going = false; err != nil {
					t.Fatal(err)
				}
			default:
			}
		}
		d.shared(all, count)
		d.send(50)
		sent += 50
	}
	d.eventually("all are handled, also what failed", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, left := range d.fails {
			if left > -1 { // it was not started once more
				return false
			}
		}
		return len(d.starts) == sent
	})
	d.eventually("former generations are deleted", func() bool {
		var names []string
		for name := range d.js.StreamNames(t.Context(), jetstream.WithStreamListSubject("relay.part.>")).Name() {
			names = append(names, name)
		}
		return slices.Equal(names, []string{"RELAY_BILLING_G3"})
	})
	t.Logf("%d were started twice, by %v", d.check(), d.who)
}

// The number changes twice in a moment: the first generation has handed over a part of what waits when there is a third one. What the second one has comes
// before what the first one has still. Both handed over to the third one side by side, and later messages of a key came before earlier ones.
func TestPartitions_regressionChangedTwiceInAMoment(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 4)
	all := map[string]*Relay{}
	for _, name := range []string{"a", "b"} {
		all[name], _, _ = d.instance(name)
	}
	d.shared(all, 4)
	sent := 0
	takes := func(each time.Duration) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.takes = each
	}
	for round, counts := range [][]int{{7, 3}, {5, 2}} {
		takes(time.Second) // so that most still waits
		d.send(1200)
		sent += 1200
		for i, count := range counts {
			by := []string{"a", "b"}[i]
			d.route.Partitions = count
			next := d.route
			next.Handler = d.handler(by)
			if _, err := all[by].Change(t.Context(), Change{Update: []Route{next}}); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				continue
			}
			var second *jetstream.StreamInfo
			d.eventually("a part is handed over", func() bool {
				s, err := d.js.Stream(t.Context(), fmt.Sprintf("RELAY_BILLING_G%d", 2+2*round))
				if err == nil {
					second = s.CachedInfo()
				}
				return err == nil && second.State.Msgs > 50
			})
			t.Logf("%d are handed over when the number changes again", second.State.Msgs)
		}
		takes(0)
		d.shared(all, counts[1])
		d.eventually("all are handled", func() bool { return d.handled() == sent })
	}
	if twice := d.check(); twice > 0 {
		t.Errorf("%d were started twice", twice)
	}
}

// A dead letter of a partition says where the message was published, and replayed it goes to the partition of its key; the ledgers of all add up.
func TestPartitions_deadLettersAndReplays(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 4)
	d.route.Retry.MaxAttempts = 1
	r, _, _ := d.instance("a")
	d.shared(map[string]*Relay{"a": r}, 4)
	d.mu.Lock()
	d.fails[7], d.fails[23], d.fails[40] = 1, 1, 1
	d.mu.Unlock()
	d.send(60)
	d.eventually("three are dead", func() bool { s := r.Status().Routes[0]; return d.handled() == 60 && s.Dead == 3 && s.Acked == 57 })
	if s := r.Status().Routes[0]; len(r.Status().Routes) != 1 || s.Name != "billing" || s.Stream != "ORDERS" || s.Partitions.Count != 4 || len(s.Partitions.Here) != 4 || s.Acked != 57 {
		t.Errorf("%+v, %+v", s, s.Partitions)
	}
	replayed := 0 // one that was just stored may be for the next job
	d.eventually("they are replayed", func() (ok bool) {
		p, err := r.Replay(t.Context(), dlq.Job{Filter: dlq.Filter{Route: "billing"}})
		if err != nil {
			t.Log(err)
		}
		replayed += p.Total
		return replayed == 3
	})
	d.eventually("they are handled", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.starts[7] == 2 && d.starts[23] == 2 && d.starts[40] == 2
	})
	d.eventually("all is settled, and the ledgers say so", func() bool {
		for n := range 4 {
			g := r.engine.Divided.Get("billing").Newest().Generation
			a := audit.Auditor{JS: r.engine.JS, API: r.engine.API, Service: "relay", Retry: r.engine.Stores.Retries.Name(), Book: r.engine.Stores.Ledgers}
			if b, err := a.Audit(t.Context(), g.Name(), g.DurableOf(n), audit.OwnRoutes, 0); err != nil || b.Verdict != audit.Balanced || b.Outstanding > 0 {
				return false
			}
		}
		return true
	})
	d.check()
}

func (d *divisions) orphanedPartitions(routes ...Route) (list []orphans.Orphan) {
	d.t.Helper()
	all, err := orphansOf(d.t.Context(), d.js, "relay", routes)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, o := range all {
		if o.Kind == orphans.Partitions {
			list = append(list, o)
		}
	}
	return list
}

// A message that is nearly as large as the server takes does not fit with the headers that tell where it comes from. It held its key, and the change of
// the partitions, for ever.
func TestPartitions_regressionWhatIsTooLargeToBeHandedOverIsADeadLetter(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	d := newDivisions(t, 4, natstest.WithConfig(fmt.Sprintf("max_payload: %d", most)))
	d.route.Retry.Backoff = supervisor.Backoff{Min: 3 * time.Second, Max: 3 * time.Second}
	var done atomic.Int64
	handler := HandlerFunc(func(_ context.Context, m *Msg) error {
		if m.Attempt == 1 && len(m.Data) > 0 {
			return errors.New("told to fail")
		}
		done.Add(1)
		return nil
	})
	route := d.route
	route.Handler = handler
	r, _ := d.start(Config{Instance: "a", Logger: quiet}, route)
	d.shared(map[string]*Relay{"a": r}, 4)
	for _, data := range [][]byte{make([]byte, most-64), nil} {
		if _, err := d.js.Publish(t.Context(), "orders.k1.paid", data); err != nil {
			t.Fatal(err)
		}
	}
	d.eventually("it failed and waits", func() bool { return r.Status().Routes[0].Retried == 1 })
	route.Partitions = 7
	if _, err := r.Update(t.Context(), route); err != nil {
		t.Fatal(err)
	}
	d.shared(map[string]*Relay{"a": r}, 7)
	d.eventually("what was behind it is handled", func() bool { return done.Load() == 1 })
	store, err := dlq.Attach(t.Context(), d.js, "relay")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range store.List(t.Context(), dlq.Filter{Route: "billing"}) {
		n++
		if err != nil || e.Sequence != 1 || !strings.Contains(e.LastError, "max_payload") {
			t.Errorf("%+v, %v", e, err)
		}
	}
	if n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// A route gets partitions while it runs and goes on where its durable is; it is removed, and added again with what came meanwhile.
func TestPartitions_aRouteGetsThemAndLosesThem(t *testing.T) {
	t.Parallel()
	d := newDivisions(t, 4)
	divided := d.route
	divided.Handler = d.handler("a")
	plain := divided
	plain.Partitions = 0
	other := Route{Name: "other", Subjects: []string{"orders.*.other"}, Start: StartAll, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	r, _ := d.start(Config{Instance: "a", Logger: quiet}, plain, other)
	d.send(50)
	d.eventually("all are handled", func() bool { return d.handled() == 50 && d.info("ORDERS", "billing").AckFloor.Stream == 50 })
	if done, err := r.Update(t.Context(), divided); err != nil || !slices.Equal(done.Updated, []string{"billing"}) || len(done.Removed) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	d.shared(map[string]*Relay{"a": r}, 4)
	d.send(50)
	d.eventually("it goes on", func() bool { return d.handled() == 100 })
	if err := r.Add(t.Context(), divided); err == nil {
		t.Error("it was added twice")
	}
	if list := d.orphanedPartitions(divided); len(list) > 0 {
		t.Errorf("what is in use is an orphan: %v", list)
	}
	if gone, err := r.Remove(t.Context(), "billing"); err != nil || gone.Route != "billing" || gone.Stream != "ORDERS" || gone.Copies != "RELAY_BILLING_G1" || r.engine.Routes.Named("billing") != nil {
		t.Fatalf("%+v, %v", gone, err)
	}
	d.send(50)
	d.eventually("its stream is an orphan, with what came since", func() bool {
		r.engine.Orphans.Find(t.Context())
		list := d.orphanedPartitions()
		return len(list) == 1 && list[0].Stream == "RELAY_BILLING_G1" && list[0].Messages == 50 && slices.ContainsFunc(r.engine.Orphans.Found(), func(o orphans.Orphan) bool { return o.String() == list[0].String() })
	})
	if list := d.orphanedPartitions(divided); len(list) > 0 {
		t.Errorf("the stream of a route of the configuration is an orphan: %v", list)
	}
	if err := r.Add(t.Context(), divided); err != nil {
		t.Fatal(err)
	}
	d.eventually("what came meanwhile is handled", func() bool { return d.handled() == 150 })
	if twice := d.check(); twice > 0 {
		t.Errorf("%d were started twice", twice)
	}
}
