package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// killedURL tells the test binary to be the process that a message ends.
const killedURL = "RELAY_TEST_KILLED_URL"

// killedRoute is the same on both sides. Handlers take long enough for neighbours to be in hand when the process ends.
func killedRoute(h HandlerFunc) Route {
	return Route{
		Name: "billing", Subjects: []string{"orders.>"}, Key: "route", AckWait: time.Second, Concurrency: 16, Handler: h,
		Retry:      Retry{MaxAttempts: 5, Backoff: supervisor.Backoff{Min: 50 * time.Millisecond, Max: 50 * time.Millisecond, Jitter: new(0.0)}},
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTripAfter: new(0)},
	}
}

// runKilled relays until a message ends this process.
func runKilled(url string) {
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1))
	if err != nil {
		panic(err)
	}
	r, err := New(nc, Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}, killedRoute(func(ctx context.Context, m *Msg) error {
		// Every start is told, so that the test can count them.
		_ = nc.Publish("test.started", []byte(m.ID+" "+string(m.Data)))
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
		pause(ctx, 30*time.Millisecond)
		return nil
	}))
	if err == nil {
		err = r.Run(context.Background())
	}
	panic(err)
}

// I-05: os.Exit, a panic that nobody can catch, and one that had failed before, so that it has a record already.
func TestRelay_messagesThatEndTheirProcess(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.WithListen())
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
			cmd.Env = append(os.Environ(), killedURL+"="+s.URL())
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
		id := fmt.Sprintf("ORDERS_billing_%d %s", seq+1, body)
		most := 4
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
	w.eventually("handlers run", func() bool { return a.routes[0].group.Status().Running == 16 })
	// An interrupted drain is a clean end too.
	if err := stopA(); !errors.Is(err, ErrForcedDrain) {
		t.Fatal(err)
	}
	b, _ := w.start(Config{Logger: quiet}, killedRoute(func(ctx context.Context, m *Msg) error {
		pause(ctx, 20*time.Millisecond)
		return nil
	}))
	w.settled("ORDERS", "billing")
	close(block)
	if ids := b.lives.entries(t); len(ids) != 1 || ids[0] != b.lives.id {
		t.Errorf("entries %v, mine is %s", ids, b.lives.id)
	}
	b.lives.mu.Lock()
	defer b.lives.mu.Unlock()
	if len(b.lives.dead) > 0 {
		t.Errorf("deaths: %v", b.lives.dead)
	}
}

func (l *lives) entries(t *testing.T) (ids []string) {
	t.Helper()
	lister, err := l.kv.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
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
	w.eventually("handlers run", func() bool { return died.routes[0].group.Status().Running == 16 })
	died.nc.Close() // all that the others see of a death
	inHand := w.info("ORDERS", "billing").Delivered.Stream
	var beside, crowded, together atomic.Int64
	l := newLedger()
	w.start(Config{Logger: quiet}, killedRoute(func(ctx context.Context, m *Msg) error {
		if beside.Add(1) > 1 {
			together.Add(1)
		}
		l.note(m)
		pause(ctx, 5*time.Millisecond)
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
			_, stop := w.start(Config{Logger: quiet}, route)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			w.publish("orders.eu", 1)
			durable, err := w.js.Consumer(t.Context(), "ORDERS", "billing")
			if err != nil {
				t.Fatal(err)
			}
			if m, err := durable.Next(); err != nil || m.Nak() != nil {
				t.Fatal("not pulled")
			}
			const other = "OTHER"
			answers, err := w.nc.Subscribe("relay.ctl.alive."+other, func(m *nats.Msg) { asked.Add(1); _ = m.Respond(nil) })
			if err != nil {
				t.Fatal(err)
			}
			bucket, err := ack.OpenBucket(t.Context(), w.js, "RELAY_ATTEMPTS", 1)
			if err != nil {
				t.Fatal(err)
			}
			records := bucket.Records("ORDERS", "billing", durable.CachedInfo().Created)
			if err := records.Mark(t.Context(), 1, 1, ack.Record{Solo: other}); err != nil {
				t.Fatal(err)
			}
			w.start(Config{Logger: quiet}, route)
			w.eventually("it waits", func() bool { return asked.Load() > 1 })
			if started.Load() > 0 {
				t.Fatal("it was started while it may still run elsewhere")
			}
			if tc.dies {
				err = answers.Unsubscribe()
			} else {
				err = records.Delete(t.Context(), 1)
			}
			if err != nil {
				t.Fatal(err)
			}
			w.settled("ORDERS", "billing")
			if letters := w.deadLetters(); len(letters) != tc.crash || int(started.Load()) != 1-tc.crash {
				t.Errorf("%d dead letters, want %d, and %d starts", len(letters), tc.crash, started.Load())
			}
		})
	}
}
