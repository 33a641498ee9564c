package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

// killedURL tells the test binary to be the process that a message ends.
const killedURL = "RELAY_TEST_KILLED_URL"

// killedRoute is the same on both sides. Handlers take long enough for neighbours to be in hand when the process ends.
func killedRoute(h HandlerFunc) Route {
	return Route{
		Name: "billing", Subjects: []string{"orders.>"}, Key: "route", AckWait: time.Second, Concurrency: 16, Handler: h,
		Retry:      Retry{MaxAttempts: 5, Backoff: supervisor.Backoff{Min: 50 * time.Millisecond, Max: 50 * time.Millisecond, Jitter: new(0.0)}},
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
	}
}

// runKilled relays until a message ends this process.
func runKilled(url string) {
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1))
	if err != nil {
		panic(err)
	}
	route := killedRoute(func(ctx context.Context, m *Msg) error {
		// Every start is told, so that the test can count them.
		_ = nc.Publish("test.started", fmt.Appendf(nil, "%d %s", m.Sequence, m.Data))
		switch {
		case string(m.Data) == "kill", string(m.Data) == "fail, then kill" && m.Attempt > 1:
			_ = nc.Flush()
			os.Exit(137)
		case string(m.Data) == "fail, then kill":
			return errors.New("fails")
		case string(m.Data) == "panic elsewhere":
			_ = nc.Flush()
			go panic("in a goroutine of its own")
			<-ctx.Done()
		}
		transient.Pause(ctx, 30*time.Millisecond)
		return nil
	})
	if os.Getenv(killedOrdered) != "" {
		route = killedHead(nc)
	}
	r, err := New(nc, Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}, route)
	if err == nil {
		err = r.Run(context.Background())
	}
	panic(err)
}

// I-05: os.Exit, a panic that nobody can catch, and one that had failed before, so that it has a record already.
func TestRelay_messagesThatEndTheirProcess(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	w := &world{t: t, s: s, nc: s.Conn(t), js: s.JetStream(t)}
	w.stream("ORDERS", "orders.>")
	// Whoever makes the durable first says where it starts.
	_, stop := w.start(Config{Logger: quiet}, killedRoute(func(context.Context, *Msg) error { return nil }))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	starts := map[string]int{}
	sub, err := w.nc.SubscribeSync("test.started")
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	killers := map[int]string{10: "kill", 30: "fail, then kill", 50: "panic elsewhere"}
	for i := range n {
		body := "ok"
		if k, bad := killers[i]; bad {
			body = k
		}
		if _, err := w.js.Publish(t.Context(), "orders.eu", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	deaths := make(chan int, 1)
	go func() {
		count := 0
		for !over.Load() {
			cmd := exec.CommandContext(t.Context(), self)
			// Without the second that the race detector waits at each exit: as long as ack_wait.
			cmd.Env = append(os.Environ(), killedURL+"="+s.URL(), "GORACE=atexit_sleep_ms=0")
			_ = cmd.Run() // it ends by its messages, or by the end of the test
			count++
		}
		deaths <- count
	}()
	deadline := time.Now().Add(time.Minute)
	for info := w.info("ORDERS", "billing"); info.NumPending+uint64(info.NumAckPending) > 0; info = w.info("ORDERS", "billing") {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: %d pending, %d in hand", info.NumPending, info.NumAckPending)
		}
		time.Sleep(50 * time.Millisecond)
	}
	over.Store(true)
	for {
		m, err := sub.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		starts[string(m.Data)]++
	}
	letters := w.deadLetters()
	for _, e := range letters {
		if e.Reason != dlq.Crash || string(e.Data) == "ok" || e.LastError == "" || e.Attempts < 3 {
			t.Errorf("dead letter %q: %s after %d attempts: %s", e.Data, e.Reason, e.Attempts, e.LastError)
		}
	}
	if len(letters) != len(killers) {
		t.Errorf("%d dead letters, want %d", len(letters), len(killers))
	}
	for seq, body := range killers {
		id := fmt.Sprintf("%d %s", seq+1, body)
		most := 5 // max_crashes and 1, and 1 for a process that a busy machine lets die more slowly than ack_wait
		if body == "fail, then kill" {
			most++ // the failure
		}
		if got := starts[id]; got < 3 || got > most {
			t.Errorf("%s was started %d times", id, got)
		}
	}
	if len(starts) != n {
		t.Errorf("%d messages were started, want %d", len(starts), n)
	}
	t.Logf("%d starts of %d messages", sum(starts), n)
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// The other side: without an unclean end there are no suspects, whatever comes again, and a process that ended cleanly
// leaves nothing behind.
func TestRelay_noSuspectsWithoutADeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	block := make(chan struct{})
	route := killedRoute(func(context.Context, *Msg) error { <-block; return nil })
	a, stopA := w.start(Config{Logger: quiet, Drain: time.Millisecond}, route)
	w.publish("orders.eu", 40)
	w.eventually("handlers run", func() bool { return a.engine.Routes.All()[0].Group.Status().Running == 16 })
	// An interrupted drain is a clean end too.
	if err := stopA(); !errors.Is(err, ErrForcedDrain) {
		t.Fatal(err)
	}
	b, _ := w.start(Config{Logger: quiet}, killedRoute(func(ctx context.Context, m *Msg) error {
		transient.Pause(ctx, 20*time.Millisecond)
		return nil
	}))
	w.settled("ORDERS", "billing")
	close(block)
	if ids := w.instances(); len(ids) != 1 || ids[0] != b.engine.Stores.Lives.Load().ID() {
		t.Errorf("entries %v, mine is %s", ids, b.engine.Stores.Lives.Load().ID())
	}
	if died, err := b.engine.Stores.Lives.Load().Recent(t.Context()); died || err != nil {
		t.Errorf("a process died: %v, %v", died, err)
	}
}

// instances are the entries of processes that have not said that they end.
func (w *world) instances() (ids []string) {
	w.t.Helper()
	kv, err := w.js.KeyValue(w.t.Context(), "RELAY_INSTANCES")
	if err != nil {
		w.t.Fatal(err)
	}
	lister, err := kv.ListKeys(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for id := range lister.Keys() {
		ids = append(ids, id)
	}
	_ = lister.Stop()
	return ids
}

// An instance that answers no more, and did not say that it ends: what it had in hand runs alone elsewhere. None is charged
// by that, and nothing is left of it in the end.
func TestRelay_innocentsOfADeathAreHandled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	block := make(chan struct{})
	defer close(block)
	died, _ := w.start(Config{Logger: quiet, Drain: time.Millisecond}, killedRoute(func(context.Context, *Msg) error { <-block; return nil }))
	w.publish("orders.eu", 40)
	w.eventually("handlers run", func() bool { return died.engine.Routes.All()[0].Group.Status().Running == 16 })
	died.engine.Conn.Close() // all that the others see of a death
	inHand := w.info("ORDERS", "billing").Delivered.Stream
	var beside, crowded, together atomic.Int64
	l := newLedger()
	w.start(Config{Logger: quiet}, killedRoute(func(ctx context.Context, m *Msg) error {
		if beside.Add(1) > 1 {
			together.Add(1)
		}
		l.note(m)
		transient.Pause(ctx, 5*time.Millisecond)
		if m.Sequence <= inHand && beside.Load() > 1 {
			crowded.Add(1)
		}
		beside.Add(-1)
		return nil
	}))
	w.settled("ORDERS", "billing")
	if n := crowded.Load(); n > 0 || l.len() != 40 {
		t.Errorf("%d of %d ran beside another", n, l.len())
	}
	if n := len(w.deadLetters()); n > 0 {
		t.Errorf("%d dead letters", n)
	}
	w.eventually("no record is left", func() bool {
		st, err := w.js.Stream(t.Context(), "KV_RELAY_ATTEMPTS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	})
	// Fresh messages run side by side again.
	w.publish("orders.eu", 200)
	w.settled("ORDERS", "billing")
	if together.Load() == 0 {
		t.Error("everything still runs alone")
	}
}

// someoneElse is a process of the service, as far as others can tell, until it is told to be gone.
func (w *world) someoneElse(id string, asked *atomic.Int64) (gone func()) {
	w.t.Helper()
	answers, err := w.nc.Subscribe("relay.ctl.alive."+id, func(m *nats.Msg) { asked.Add(1); _ = m.Respond(nil) })
	if err != nil {
		w.t.Fatal(err)
	}
	return func() { _ = answers.Unsubscribe() }
}

// cameAgain makes the durable of a route, and has n messages delivered that come again later to whoever is next.
func (w *world) cameAgain(route Route, n int, later time.Duration) jetstream.Consumer {
	w.t.Helper()
	return w.delivered(route, n, func(m *nats.Msg) { w.respond(m, fmt.Sprintf(`-NAK {"delay": %d}`, later.Nanoseconds())) })
}

// delivered makes the durable of a route, and has n messages delivered to nobody but the function.
func (w *world) delivered(route Route, n int, to func(m *nats.Msg)) jetstream.Consumer {
	w.t.Helper()
	_, stop := w.start(Config{Logger: quiet}, route)
	if err := stop(); err != nil {
		w.t.Fatal(err)
	}
	w.publish("orders.eu", n)
	durable, err := w.js.Consumer(w.t.Context(), "ORDERS", route.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	for range n {
		to(w.pull("ORDERS", route.Name))
	}
	return durable
}

func (w *world) respond(m *nats.Msg, ack string) {
	w.t.Helper()
	if err := m.Respond([]byte(ack)); err != nil {
		w.t.Fatal(err)
	}
}

// pull takes a message of a durable, as a process that is gone had it: also where one instance pulls alone.
func (w *world) pull(stream, durable string) *nats.Msg {
	w.t.Helper()
	request := `{"batch":1}`
	if w.info(stream, durable).Config.PriorityPolicy == jetstream.PriorityPolicyPinned {
		request = `{"batch":1,"group":"relay"}`
		// Whoever had it alone before may still be taken for the one who does.
		if _, err := w.nc.Request("$JS.API.CONSUMER.UNPIN."+stream+"."+durable, []byte(`{"group":"relay"}`), 5*time.Second); err != nil {
			w.t.Fatal(err)
		}
	}
	m, err := w.nc.Request("$JS.API.CONSUMER.MSG.NEXT."+stream+"."+durable, []byte(request), 5*time.Second)
	if err != nil || !strings.HasPrefix(m.Reply, "$JS.ACK.") {
		w.t.Fatalf("not pulled: %+v, %v", m, err)
	}
	return m
}

// runsElsewhere has the record of the first message say that another process runs it.
func (w *world) runsElsewhere(durable jetstream.Consumer, id string) *retry.Records {
	w.t.Helper()
	bucket, err := retry.OpenBucket(w.t.Context(), w.js, "RELAY_ATTEMPTS", 1)
	if err != nil {
		w.t.Fatal(err)
	}
	records := bucket.Records("ORDERS", durable.CachedInfo().Name, durable.CachedInfo().Created)
	if _, err := records.Mark(w.t.Context(), 1, 1, retry.Record{Solo: id}); err != nil {
		w.t.Fatal(err)
	}
	return records
}

// A stack overflow takes seconds to end its process, longer than a short AckWait: the process is cut off from its lease, and
// still answers. Its message came again elsewhere, and was started there without a charge for the first process.
func TestRelay_regressionSuspectIsNotStartedWhileItRunsElsewhere(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dies  bool
		crash int
	}{
		"the process dies at last": {dies: true, crash: 1},
		"the handler returns":      {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var started, asked atomic.Int64
			route := killedRoute(func(context.Context, *Msg) error { started.Add(1); return nil })
			route.Retry.MaxCrashes = 1
			records := w.runsElsewhere(w.cameAgain(route, 1, time.Millisecond), "OTHER")
			gone := w.someoneElse("OTHER", &asked)
			w.start(Config{Logger: quiet}, route)
			w.eventually("it waits", func() bool { return asked.Load() > 1 })
			if started.Load() > 0 {
				t.Fatal("it was started while it may still run elsewhere")
			}
			if tc.dies {
				gone()
			} else if err := records.Delete(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			w.settled("ORDERS", "billing")
			if letters := w.deadLetters(); len(letters) != tc.crash || int(started.Load()) != 1-tc.crash {
				t.Errorf("%d dead letters, want %d, and %d starts", len(letters), tc.crash, started.Load())
			}
		})
	}
}

// The bucket of attempts does not answer when the handler of a suspect has returned: the attempt's clock ran on, and the success
// was charged as a hang.
func TestRelay_regressionSuccessOfASuspectIsNoHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var started atomic.Int64
	accept := make(chan func(), 1)
	route := killedRoute(func(context.Context, *Msg) error {
		started.Add(1)
		accept <- w.refuses("KV_RELAY_ATTEMPTS")
		return nil
	})
	route.Timeout = time.Second
	w.runsElsewhere(w.cameAgain(route, 1, time.Millisecond), "GONE")
	r, _ := w.start(Config{Logger: quiet}, route)
	again := <-accept
	since := time.Now()
	w.eventually("three time-outs are over", func() bool { return time.Since(since) > 3*time.Second })
	again()
	w.settled("ORDERS", "billing")
	if c := r.engine.Routes.All()[0].Group.Status().Counts; c.Hangs > 0 || started.Load() != 1 {
		t.Errorf("%d hangs, %d starts", c.Hangs, started.Load())
	}
	w.eventually("no record is left", func() bool {
		st, err := w.js.Stream(t.Context(), "KV_RELAY_ATTEMPTS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	})
}

// A drain waited for what was being asked of the server, for ever when that did not answer.
func TestRelay_regressionDrainDoesNotWaitForALookUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked atomic.Int64
	route := killedRoute(func(context.Context, *Msg) error { return nil })
	durable := w.cameAgain(route, 1, time.Millisecond)
	w.runsElsewhere(durable, "OTHER")
	w.someoneElse("OTHER", &asked)
	_, stop := w.start(Config{Logger: quiet, Drain: 20 * time.Second}, route)
	w.eventually("it waits", func() bool { return asked.Load() > 1 })
	began := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the drain took %v", took)
	}
	w.eventually("it was given back", func() bool { return w.info("ORDERS", "billing").NumRedelivered == 1 })
	if m, err := durable.Next(jetstream.FetchMaxWait(500 * time.Millisecond)); err != nil {
		t.Errorf("it does not come again at once: %v", err)
	} else {
		_ = m.Ack()
	}
}

// While something is asked for an ordered message all that come behind it wait, and these were pulled without a bound.
func TestRelay_regressionWhatIsBehindALookUpIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked atomic.Int64
	l := newLedger()
	route := killedRoute(func(_ context.Context, m *Msg) error { l.note(m); return nil })
	route.Key, route.Order, route.AckWait = "subject", supervisor.OrderKey, 30*time.Second
	w.runsElsewhere(w.cameAgain(route, 1, time.Millisecond), "OTHER")
	gone := w.someoneElse("OTHER", &asked)
	w.flood("orders.eu", 10_000)
	r, _ := w.start(Config{Logger: quiet}, route)
	w.eventually("it waits", func() bool { return asked.Load() > 1 }) // for a second, in which all the others would come
	if n := source.Behind(r.engine.Running.Sources()[0]); n < source.MaxBehind || n > 8*source.MaxBehind {
		t.Errorf("%d messages are behind it", n)
	}
	gone()
	w.settled("ORDERS", "billing")
	if l.len() != 10_001 {
		t.Errorf("%d messages were handled", l.len())
	}
}

// Questions that nobody answers took all the slow paths, and failures stood behind them.
func TestRelay_regressionFailuresDoNotStandBehindLookUps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	route := killedRoute(func(context.Context, *Msg) error { return Dead(errors.New("bad")) })
	route.Supervisor.DeadTrip.Of, route.AckWait = new(0), time.Minute
	var held []*nats.Msg // until relay runs and cannot ask
	w.delivered(route, 2*settle.Paths, func(m *nats.Msg) { held = append(held, m) })
	r, _ := w.start(Config{Logger: quiet}, route)
	done, err := r.engine.Stores.Lives.Load().Turn(t.Context()) // somebody looks, and the server does not answer
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range held {
		w.respond(m, "-NAK")
	}
	w.eventually("they are asked for", func() bool { return r.engine.Routes.All()[0].Questions.Len() >= settle.Paths })
	w.publish("orders.us", 1)
	w.eventually("the failure is settled", func() bool { return len(w.deadLetters()) == 1 })
	done()
	w.settled("ORDERS", "billing")
}
