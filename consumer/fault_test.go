package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/supervisor"
)

// unready waits until the relay says that something does not work, for the time that I-30 allows.
func (w *world) unready(r *Relay, reasons ...string) {
	w.t.Helper()
	start := time.Now()
	w.eventually("not ready because of "+strings.Join(reasons, ", "), func() bool {
		err := r.Ready()
		return err != nil && !slices.ContainsFunc(reasons, func(s string) bool { return !strings.Contains(err.Error(), s) })
	})
	if took := time.Since(start); took > 12*time.Second {
		w.t.Errorf("it takes %v to say so", took)
	} else {
		w.t.Logf("said after %v: %v", took.Round(time.Millisecond), r.Ready())
	}
}

// I-09: a panic is a stop of one child, however many there are. F51, F52: whatever the panic is.
func TestRelay_panicsByTheTenThousand(t *testing.T) {
	const (
		keys     = 400
		messages = 2_000
	)
	each := 5 // panics of a message
	if fullFigures {
		each = 50
	}
	w := newWorld(t)
	for i := range messages {
		if _, err := w.js.PublishAsync(fmt.Sprintf("orders.%d", i%keys), nil); err != nil {
			t.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
	var panics, handled atomic.Int64
	quick := supervisor.Backoff{Policy: supervisor.Constant, Min: time.Millisecond, Max: time.Millisecond, Jitter: new(0.0)}
	began := time.Now()
	r, stop := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Concurrency: 256,
		Retry:      Retry{MaxAttempts: -1, Backoff: quick},
		Stash:      Stash{Messages: 4 * messages},
		Supervisor: supervisor.Config{Restart: quick, DrainGrace: new(time.Duration(0)), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if m.Attempt > each {
				handled.Add(1)
				return nil
			}
			switch n := panics.Add(1); n % 5 {
			case 0:
				panic(errors.New("an error"))
			case 1:
				panic("a string")
			case 2:
				var nobody *Msg
				_ = nobody.Subject
			case 3:
				panic(badError{})
			default:
				runtime.Goexit()
			}
			return nil
		}),
	})
	// A panic in a run that another one's panic has cancelled spends no attempt: there are more than each of every message.
	for deadline := time.Now().Add(2 * time.Minute); panics.Load() < int64(each*messages) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	took, n := time.Since(began), panics.Load()
	t.Logf("%d panics in %v, %.0f/s; %d messages handled", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), handled.Load())
	if n < int64(each*messages) {
		t.Errorf("only %d panics", n)
	}
	// A panic in a run that another one's panic has cancelled already is no stop and no attempt, and is not counted.
	if got := r.engine.Routes.All()[0].Group.Status().Counts.Panics; int64(got) > panics.Load() || int64(got) < n*95/100-256 {
		t.Errorf("%d panics counted, %d happened", got, n)
	}
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if len(w.deadLetters()) != 0 {
		t.Error("dead letters")
	}
	// TestMain looks for leaked goroutines at the end; this says which test it was.
	w.eventually("no goroutine of relay is left", func() bool {
		stacks := make([]byte, 4<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "relay/supervisor.")
	})
}

type badError struct{}

func (badError) Error() string { panic("no text either") }

// F15, I-12: the server goes and comes back.
func TestRelay_serverRestartsInMidStream(t *testing.T) {
	w := newWorld(t)
	l := newLedger()
	var last atomic.Int64 // when the last handler started
	r, stop := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, AckWait: 2 * time.Second,
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			l.note(m)
			last.Store(time.Now().UnixNano())
			time.Sleep(2 * time.Millisecond) // work, so that some of it is in hand
			return nil
		}),
	})
	// Published throughout, each until it is confirmed: the stream never runs dry,
	// so that handlers have something to start on after each restart.
	var enough atomic.Bool
	published := make(chan int, 1)
	go func() {
		messages := 0
		defer func() { published <- messages }()
		for ; !enough.Load(); messages++ {
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				_, err := w.js.Publish(ctx, fmt.Sprintf("orders.%d", messages%50), nil, jetstream.WithMsgID(strconv.Itoa(messages)))
				cancel()
				if err == nil {
					break
				}
				if t.Context().Err() != nil {
					return
				}
			}
		}
	}()
	for n := range 3 {
		w.eventually("it runs", func() bool { return l.len() > 100+n*200 })
		w.s.Restart()
		back := time.Now()
		w.eventually("handlers start again", func() bool { return time.Unix(0, last.Load()).After(back) })
		if took := time.Unix(0, last.Load()).Sub(back); took > 5*time.Second {
			t.Errorf("restart %d: the first handler started after %v, want at most 5s", n, took)
		} else {
			t.Logf("restart %d: handling again within %v", n, time.Since(back).Round(time.Millisecond))
		}
	}
	enough.Store(true)
	messages := <-published
	w.eventually("all are handled", func() bool { return l.len() == messages })
	w.settled("ORDERS", "billing")
	w.eventually("ready", func() bool { return r.Ready() == nil })
	duplicates := 0
	for _, n := range l.seen {
		duplicates += n - 1
	}
	t.Logf("%d duplicates over 3 restarts", duplicates)
	if most := 3 * 2 * 64; duplicates > most {
		t.Errorf("%d duplicates, want at most %d: a clean restart forgets no ack", duplicates, most)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// F22, I-30.
func TestRelay_consumerOrStreamDeletedUnderLoad(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(w *world) error{
		"consumer": func(w *world) error { return w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing") },
		"stream":   func(w *world) error { return w.js.DeleteStream(w.t.Context(), "ORDERS") },
		"consumer made anew": func(w *world) error {
			if err := w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing"); err != nil {
				return err
			}
			_, err := w.js.CreateConsumer(w.t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stream("INVOICES", "invoices.>")
			orders, invoices := newLedger(), newLedger()
			r, stop := w.start(Config{Logger: quiet},
				Route{Name: "billing", Subjects: []string{"orders.>"}, Concurrency: 4, Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
					orders.note(m)
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Millisecond):
					}
					return nil
				})},
				Route{Name: "printing", Subjects: []string{"invoices.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error { invoices.note(m); return nil })},
			)
			w.publish("orders.eu", 500)
			w.eventually("it runs", func() bool { return orders.len() > 20 })
			if err := remove(w); err != nil {
				t.Fatal(err)
			}
			reason := "deleted"
			w.unready(r, "billing", reason)
			w.publish("invoices.eu", 10)
			w.eventually("the other route works", func() bool { return invoices.len() == 10 })
			if err := stop(); err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

// I-18: no ack without a dead letter, and no other route notices.
func TestRelay_deadLettersThatCannotBeStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hurt, mend func(w *world) error
	}{
		"deleted": {
			hurt: func(w *world) error { return w.js.DeleteStream(w.t.Context(), "RELAY_DLQ") },
			mend: func(w *world) error {
				_, err := dlq.Open(w.t.Context(), w.js, dlq.Config{Service: "relay", Replicas: 1})
				return err
			},
		},
		"full": {
			hurt: func(w *world) error {
				// relay sets back what others edit of its streams, with its first look right after the start.
				for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if err := w.limitDLQ(1); err != nil {
						return err
					}
				}
				return nil
			},
			mend: func(w *world) error { return w.limitDLQ(-1) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stream("INVOICES", "invoices.>")
			invoices := newLedger()
			r, stop := w.start(Config{},
				Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return Dead(errors.New("broken")) })},
				Route{Name: "printing", Subjects: []string{"invoices.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error { invoices.note(m); return nil })},
			)
			if err := c.hurt(w); err != nil {
				t.Fatal(err)
			}
			const messages = 20
			w.publish("orders.eu", messages)
			w.unready(r, "billing", "cannot store dead letters")
			w.eventually("none is acked without a home", func() bool { // what was just stored is counted as pending a moment later
				i := w.info("ORDERS", "billing")
				return i.NumPending+uint64(i.NumAckPending) >= messages-1
			})
			w.publish("invoices.eu", 100)
			w.eventually("the other route works", func() bool { return invoices.len() == 100 })
			if err := c.mend(w); err != nil {
				t.Fatal(err)
			}
			mended := time.Now()
			w.eventually("all are in the dead letters", func() bool { return len(w.deadLetters()) == messages })
			w.settled("ORDERS", "billing")
			t.Logf("healed after %v", time.Since(mended).Round(time.Millisecond))
			if took := time.Since(mended); took > 10*time.Second {
				t.Errorf("healed after %v, want at most 10s", took)
			}
			w.eventually("ready", func() bool { return r.Ready() == nil })
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// limitDLQ bounds the dead letters to a number of messages, as an instance with another configuration would.
func (w *world) limitDLQ(n int64) error {
	st, err := w.js.Stream(w.t.Context(), "RELAY_DLQ")
	if err != nil {
		return err
	}
	cfg := st.CachedInfo().Config
	cfg.MaxMsgs = n
	cfg.Metadata = maps.Clone(cfg.Metadata)
	cfg.Metadata["relay-max_msgs"] = strconv.FormatInt(n, 10)
	_, err = w.js.UpdateStream(w.t.Context(), cfg)
	return err
}

// I-13: twenty times, what was not started is elsewhere within a second.
func TestRelay_drainGivesBackAtOnce_timed(t *testing.T) {
	timed(t)
	w := newWorld(t)
	const concurrency = 8
	for n := range 20 {
		subject := fmt.Sprintf("orders.%d", n)
		finish := make(chan struct{})
		var started atomic.Int64
		route := Route{
			Name: fmt.Sprintf("billing%d", n), Subjects: []string{subject}, Concurrency: concurrency, Start: Start{Policy: "all"},
			Handler: HandlerFunc(func(context.Context, *Msg) error { started.Add(1); <-finish; return nil }),
		}
		r, stop := w.start(Config{Logger: quiet}, route)
		w.publish(subject, 40)
		full := int64(concurrency)
		w.eventually("handlers run", func() bool { return started.Load() == full && r.engine.Routes.All()[0].Group.Status().Window > 0 })

		stopped := make(chan error, 1)
		began := time.Now()
		go func() { stopped <- stop() }()
		w.eventually("it drains", func() bool {
			return r.engine.Running.Sources()[0].Pulls.IsDraining()
		})
		other := newLedger()
		elsewhere := route
		elsewhere.Handler = HandlerFunc(func(_ context.Context, m *Msg) error { other.note(m); return nil })
		_, stopOther := w.start(Config{Logger: quiet}, elsewhere)
		w.eventually("the rest is handled elsewhere", func() bool { return other.len() >= 40-concurrency })
		if took := time.Since(began); took > 2*time.Second { // a second, and the start of the other instance
			t.Errorf("drain %d: what was not started was elsewhere after %v", n, took)
		}
		if got := started.Load(); got != full {
			t.Errorf("drain %d: %d handlers started after the stop", n, got-full)
		}
		close(finish)
		if err := <-stopped; err != nil {
			t.Errorf("drain %d: %v", n, err)
		}
		w.settled("ORDERS", route.Durable+route.Name)
		if other.len() != 40-concurrency {
			t.Errorf("drain %d: %d handled elsewhere, want %d", n, other.len(), 40-concurrency)
		}
		if err := stopOther(); err != nil {
			t.Error(err)
		}
	}
}

// I-15: a handler that takes three times the AckWait is started once, and so is what waits behind it.
func TestRelay_longHandlersAreStartedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	const ackWait = time.Second
	_, stop := w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, AckWait: ackWait, Concurrency: 20,
		Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
			if n := l.note(m); n > 1 {
				t.Errorf("%s is started %d times", m.ID, n)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(3*ackWait + ackWait/2): // the handler's work
				return nil
			}
		}),
	})
	w.publish("orders.eu", 10)
	w.publish("orders.us", 30)
	w.eventually("all are handled", func() bool { return l.len() == 40 })
	w.settled("ORDERS", "billing")
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// I-25: at rest, every delivery is accounted for.
func TestRelay_countersAreTrue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	starts := map[string]int{} // what handlers said
	note := func(what string, err error) error {
		mu.Lock()
		defer mu.Unlock()
		starts[what]++
		return err
	}
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry: Retry{MaxAttempts: 3, Backoff: supervisor.Backoff{Policy: supervisor.Constant, Min: 20 * time.Millisecond}},
		// Without trips: enough of these fail in a row to look like an outage, in which no attempts are spent.
		Supervisor: supervisor.Config{
			Restart:   supervisor.Backoff{Policy: supervisor.Constant, Min: 10 * time.Millisecond},
			RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0),
		},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			switch {
			case strings.HasPrefix(m.Subject, "orders.fail"):
				return note("retry", errors.New("broken"))
			case strings.HasPrefix(m.Subject, "orders.once") && m.Attempt == 1:
				return note("retry", errors.New("broken once"))
			case strings.HasPrefix(m.Subject, "orders.dead"):
				return note("dead", Dead(errors.New("never")))
			case strings.HasPrefix(m.Subject, "orders.drop"):
				return note("drop", Drop("nobody wants it"))
			case strings.HasPrefix(m.Subject, "orders.panic") && m.Attempt == 1:
				_ = note("panic", nil)
				panic("boom")
			}
			return note("ack", nil)
		}),
	})
	const each = 30
	for _, kind := range []string{"fine", "fail", "once", "dead", "drop", "panic"} {
		for i := range each {
			w.publish(fmt.Sprintf("orders.%s.%d", kind, i), 1)
		}
	}
	w.settled("ORDERS", "billing")
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.Collector())
	get := func() map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := strings.TrimPrefix(f.GetName(), "relay_")
				for _, l := range m.GetLabel() {
					if l.GetName() != "route" && l.GetName() != "stream" && !(l.GetName() == "durable" && l.GetValue() == "billing") {
						key += " " + l.GetValue()
					}
				}
				got[key] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return got
	}
	w.eventually("confirmed", func() bool { return get()["unconfirmed_settlements"] == 0 })
	got := get()
	mu.Lock()
	defer mu.Unlock()
	for name, want := range map[string]float64{
		"settlements_total acked":      3 * each,
		"settlements_total dropped":    each,
		"settlements_total dead":       2 * each,
		"settlements_total retried":    float64(2*each + each + each), // fail twice, once and panic once
		"dead_letters_total exhausted": each,
		"dead_letters_total dead":      each,
		"dead_letter_failures_total":   0,
		"handler_panics_total":         each,
		"handler_hangs_total":          0,
		"verdicts_total ack":           float64(starts["ack"]),
		"verdicts_total retry":         float64(starts["retry"]),
		"verdicts_total dead":          float64(starts["dead"]),
		"verdicts_total drop":          float64(starts["drop"]),
		"handler_seconds":              float64(starts["ack"] + starts["retry"] + starts["dead"] + starts["drop"] + starts["panic"]),
		"handlers_running":             0,
		"handlers_stuck":               0,
		"stash_messages":               0,
		"window_messages":              0,
		"route_up":                     1,
		"nats_connected":               1,
		"unconfirmed_settlements":      0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	left := 0.0
	for name, v := range got {
		if strings.HasPrefix(name, "settlements_total ") {
			left += v
		}
	}
	if got["deliveries_total"] != left {
		t.Errorf("%v deliveries, and %v of them left: %v", got["deliveries_total"], left, got)
	}
	if got["retries_total nak"]+got["retries_total parked"] != got["settlements_total retried"] {
		t.Errorf("retries %v %v", got["retries_total nak"], got["retries_total parked"])
	}
	if n := len(w.deadLetters()); float64(n) != got["settlements_total dead"] {
		t.Errorf("%d dead letters", n)
	}
}
