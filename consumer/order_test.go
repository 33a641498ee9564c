package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), text)
}

// A head that fails waits in memory: nothing said so, for up to hours.
func TestRelay_regressionAFailingHeadIsSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log syncBuffer
	r, _ := w.start(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey,
		Retry:   Retry{Backoff: supervisor.Backoff{Min: time.Hour}},
		Handler: HandlerFunc(func(context.Context, *Msg) error { return errors.New("gateway timeout") }),
	})
	w.publish("orders.eu", 2)
	w.eventually("the head waits", func() bool { return len(r.Status().Routes[0].Waiting) == 1 })
	s := r.Status().Routes[0]
	k := s.Waiting[0]
	if k.Key != "orders.eu" || k.State != "waiting" || k.Why != "the first message of the key failed: gateway timeout" || k.Until == nil {
		t.Errorf("key %+v", k)
	}
	if s.Retried != 1 || s.Keys["waiting"] != 1 {
		t.Errorf("route %+v", s)
	}
	w.eventually("it is logged", func() bool { return log.count(`msg="attempt failed"`) == 1 })
}

// killedOrdered has the process that a test kills run killedHead.
const killedOrdered = "RELAY_TEST_KILLED_ORDERED"

func killedHead(nc *nats.Conn) Route {
	route := killedRoute(func(_ context.Context, m *Msg) error {
		_ = nc.Publish("test.started", []byte(m.ID))
		return errors.New("fails")
	})
	route.Order = supervisor.OrderKey
	route.Retry.MaxAttempts, route.Retry.Min, route.Retry.Max = 6, 500*time.Millisecond, 500*time.Millisecond
	return route
}

// The attempts of an ordered head were in memory only. Killed after every second one, it was started for ever.
func TestRelay_regressionAttemptsOfAHeadOutliveTheProcess(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	w := &world{t: t, s: s, nc: s.Conn(t), js: s.JetStream(t)}
	w.stream("ORDERS", "orders.>")
	_, stop := w.start(Config{Logger: quiet}, killedHead(w.nc))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	sub, err := w.nc.SubscribeSync("test.started")
	if err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu", 1)
	bucket, err := retry.OpenBucket(t.Context(), w.js, "RELAY_ATTEMPTS", 1)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	durable := w.info("ORDERS", "billing")
	kills := 0
	for attempts := 2; attempts < 6; attempts += 2 {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), killedURL+"="+s.URL(), killedOrdered+"=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.eventually(fmt.Sprintf("%d attempts are stored", attempts), func() bool {
			rec, err := bucket.Records("ORDERS", "billing", durable.Created).Get(t.Context(), 1, 1)
			return err == nil && rec.Attempts >= attempts && rec.Solo == ""
		})
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		kills++
	}
	w.start(Config{Logger: quiet}, killedHead(w.nc))
	w.eventually("it is a dead letter", func() bool { return len(w.deadLetters()) == 1 })
	if e := w.deadLetters()[0]; e.Reason != dlq.Exhausted || e.Attempts != 6 {
		t.Errorf("%s after %d attempts", e.Reason, e.Attempts)
	}
	starts := 0
	for {
		if _, err := sub.NextMsg(100 * time.Millisecond); err != nil {
			break
		}
		starts++
	}
	if starts < 6 || starts > 6+kills {
		t.Errorf("it was started %d times", starts)
	}
}

// The attempts of a message were asked for again and again when somebody had damaged their record, and all messages of an ordered route waited behind it.
func TestRelay_regressionADamagedRecordHoldsUpNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	var works atomic.Bool
	route := Route{
		Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey, AckWait: 2 * time.Second, Retry: Retry{Backoff: supervisor.Backoff{Min: 100 * time.Millisecond, Max: 100 * time.Millisecond}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if !works.Load() {
				return errors.New("fails")
			}
			l.note(m)
			return nil
		}),
	}
	_, stop := w.start(Config{Logger: quiet}, route)
	w.publish("orders.eu", 1)
	kv, err := w.js.KeyValue(t.Context(), "RELAY_ATTEMPTS")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	w.eventually("its attempts are stored", func() bool {
		keys, _ = kv.Keys(t.Context())
		return len(keys) == 1
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), keys[0], "not JSON"); err != nil {
		t.Fatal(err)
	}
	works.Store(true)
	w.publish("orders.eu", 3)
	w.start(Config{Logger: quiet}, route)
	w.eventually("it is a dead letter", func() bool { return len(w.deadLetters()) == 1 })
	if e := w.deadLetters()[0]; e.Reason != dlq.Rejected || e.Sequence != 1 || !strings.Contains(e.LastError, "is damaged") {
		t.Errorf("dead letter of message %d: %s: %s", e.Sequence, e.Reason, e.LastError)
	}
	w.settled("ORDERS", "billing")
	if l.len() != 3 {
		t.Errorf("%d of the others were handled", l.len())
	}
	w.eventually("no record is left", func() bool {
		keys, err := kv.Keys(t.Context())
		return errors.Is(err, jetstream.ErrNoKeysFound) || err == nil && len(keys) == 0
	})
}

// inOrder sees to it that messages of a key start in their order for the first time.
type inOrder struct {
	mu      sync.Mutex
	last    map[string]uint64
	started map[uint64]bool
	early   []string
}

func newInOrder() *inOrder { return &inOrder{last: map[string]uint64{}, started: map[uint64]bool{}} }

func (o *inOrder) Handle(ctx context.Context, m *Msg) error {
	o.mu.Lock()
	if !o.started[m.Sequence] && m.Sequence < o.last[m.Subject] {
		o.early = append(o.early, fmt.Sprintf("%s: %d after %d", m.Subject, m.Sequence, o.last[m.Subject]))
	}
	o.started[m.Sequence] = true
	o.last[m.Subject] = max(o.last[m.Subject], m.Sequence)
	o.mu.Unlock()
	transient.Pause(ctx, time.Millisecond)
	return nil
}

func (o *inOrder) check(t *testing.T, want int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.early) > 0 {
		t.Errorf("%d messages were overtaken: %v", len(o.early), o.early[:min(5, len(o.early))])
	}
	if len(o.started) != want {
		t.Errorf("%d messages were started, want %d", len(o.started), want)
	}
}

// Deliveries that cut connections took with them came again after AckWait, and later messages at once.
func TestRelay_regressionOrderOutlivesTheConnection(t *testing.T) {
	t.Parallel()
	w, proxy := wired(t)
	o := newInOrder()
	w.startAt(proxy.URL(), Route{
		Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey, AckWait: 3 * time.Second, Handler: o,
	})
	const n = 900
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := range n {
			if _, err := w.js.Publish(t.Context(), fmt.Sprintf("orders.%d", i%20), nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for cut := range uint64(8) {
		w.eventually("some more were published", func() bool { return w.info("ORDERS", "billing").Delivered.Stream >= cut*n/10 })
		proxy.Cut()
	}
	publishing.Wait()
	w.settled("ORDERS", "billing")
	o.check(t, n)
}

// On a durable with several routes nobody waited for what the process before had in hand.
func TestRelay_regressionOrderOnASharedDurableAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := newInOrder()
	routes := []Route{
		{Name: "billing", Durable: "shared", Subjects: []string{"orders.eu"}, Order: supervisor.OrderKey, AckWait: 2 * time.Second, Handler: o},
		{Name: "shipping", Durable: "shared", Subjects: []string{"orders.us"}, Instances: InstancesOne, AckWait: 2 * time.Second, Handler: o},
	}
	_, stop := w.start(Config{Logger: quiet}, routes...)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu", 1)
	w.pull("ORDERS", "shared")
	w.publish("orders.eu", 2)
	w.start(Config{Logger: quiet}, routes...)
	w.settled("ORDERS", "shared")
	o.check(t, 3)
}

// What the stash had no room for while an endpoint was down stayed away for ever longer: 5,000 messages on 20 keys took more than
// half an hour after an outage of three seconds.
func TestRelay_regressionAnOrderedBacklogDrainsAfterAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n, keys = 2000, 20
	for i := range n {
		if _, err := w.js.PublishAsync(fmt.Sprintf("orders.%d", i%keys), nil); err != nil {
			t.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
	o := newInOrder()
	began := time.Now()
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey, Start: Start{Policy: "all"}, Stash: Stash{Messages: 100},
		Retry:      Retry{Backoff: supervisor.Backoff{Min: 100 * time.Millisecond, Max: time.Second}},
		Supervisor: supervisor.Config{Restart: supervisor.Backoff{Min: 100 * time.Millisecond, Max: time.Second}},
		Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
			if time.Since(began) < 3*time.Second {
				return errors.New("down")
			}
			return o.Handle(ctx, m)
		}),
	})
	w.settled("ORDERS", "billing")
	t.Logf("settled after %v, %d given back", time.Since(began).Round(time.Millisecond), r.engine.Routes.All()[0].Group.Status().Counts.Evicted)
	o.check(t, n)
}
