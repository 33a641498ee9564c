package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/ownstream"
)

// filling is how full the metrics say that a stream is; -1: they say nothing.
func (w *world) filling(r *Relay, stream, bound string) float64 {
	w.t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.Collector())
	families, err := reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "relay_stream_fill_ratio" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == bound && m.GetLabel()[1].GetValue() == stream {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// tells says whether the status has a line with all of these.
func tells(r *Relay, parts ...string) bool {
	for _, line := range r.Status().Trouble {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return true
		}
	}
	return false
}

func (w *world) msgs(stream string) jetstream.StreamState {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	return s.CachedInfo().State
}

// What waits for its retry had a bound for each route in messages only, and nothing said that it was nearly reached.
func TestFill_retryStream(t *testing.T) {
	t.Parallel()
	for bound, of := range map[string]func(eight jetstream.StreamState) Parked{
		"messages": func(jetstream.StreamState) Parked { return Parked{MaxMsgs: 10} },
		"bytes":    func(eight jetstream.StreamState) Parked { return Parked{MaxBytes: Bytes(eight.Bytes * 10 / 8)} },
	} {
		t.Run(bound, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rt := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
				return RetryIn(time.Hour, errors.New("not today"))
			})}
			_, stop := w.start(Config{}, rt)
			w.publish("orders.eu", 8)
			w.eventually("eight are parked", func() bool { return w.msgs("RELAY_RETRY").Msgs == 8 })
			w.settled("ORDERS", "billing")
			if err := stop(); err != nil {
				t.Fatal(err)
			}

			// A lower bound of a stream that is there.
			var log syncBuffer
			r, stop := w.start(Config{Parked: of(w.msgs("RELAY_RETRY")), Logger: slog.New(slog.NewTextHandler(&log, nil))}, rt)
			key := map[string]string{"messages": "parked.max_msgs", "bytes": "parked.max_bytes"}[bound]
			w.eventually("the status says so at 80 %", func() bool {
				return tells(r, "stream RELAY_RETRY holds 8 messages", "80 % of "+key, "wait in their durables")
			})
			if n := w.filling(r, "RELAY_RETRY", bound); n < 0.79 || n > 0.81 {
				t.Errorf("the metrics say %v", n)
			}
			if n := log.count("one of relay's own streams is nearly full"); n != 1 {
				t.Errorf("the log says so %d times", n)
			}
			for i := range 6 {
				w.publish("orders.eu", 1)
				if i < 3 {
					time.Sleep(1100 * time.Millisecond) // how much waits is looked up once a second
				}
			}
			w.eventually("those that find no room wait in their durable", func() bool {
				n, p := w.msgs("RELAY_RETRY").Msgs, w.info("ORDERS", "billing")
				return n >= 10 && n <= 11 && n+uint64(p.NumAckPending) == 14 && p.NumPending == 0
			})
			r.engine.Upkeep.Compare(t.Context())
			if err := r.Ready(); err != nil || !tells(r, "RELAY_RETRY", "1") || w.filling(r, "RELAY_RETRY", bound) < 1 {
				t.Errorf("%v; %v", err, r.Status().Trouble)
			}
			if n := log.count("one of relay's own streams is nearly full"); n != 1 {
				t.Errorf("the log says so %d times", n)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}

			// A higher bound.
			r, _ = w.start(Config{}, rt)
			w.publish("orders.eu", 5)
			w.eventually("more are parked", func() bool { return w.msgs("RELAY_RETRY").Msgs >= 15 })
			w.eventually("nothing is said any more", func() bool { return w.filling(r, "RELAY_RETRY", bound) >= 0 && len(r.Status().Trouble) == 0 })
		})
	}
}

// A message that waits for very long belongs to a route that is paused or gone. It is said, and not removed.
func TestFill_retryStreamByAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Parked: Parked{MaxAge: time.Second}}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		return RetryIn(time.Hour, errors.New("not today"))
	})})
	w.publish("orders.eu", 3)
	w.eventually("they are parked", func() bool { return w.msgs("RELAY_RETRY").Msgs == 3 })
	w.eventually("it is said", func() bool {
		r.engine.Upkeep.Compare(t.Context())
		return tells(r, "RELAY_RETRY", "parked.max_age", "nothing is removed") && w.filling(r, "RELAY_RETRY", "age") > 1
	})
	if n := w.msgs("RELAY_RETRY").Msgs; n != 3 {
		t.Errorf("%d are left", n)
	}
}

// The oldest events go, and nothing else.
func TestFill_events(t *testing.T) {
	t.Parallel()
	for bound, cfg := range map[string]Events{
		"messages": {Store: true, MaxMsgs: 10},
		"bytes":    {Store: true, MaxBytes: 10_000},
	} {
		t.Run(bound, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := newLedger()
			r, _ := w.start(Config{Events: cfg}, countingRoute(l))
			name := events.StreamName("relay")
			fillUntil := func(share float64) {
				w.eventually(fmt.Sprint("it is full to ", share), func() bool {
					if err := w.nc.Publish(event.Prefix("relay")+".test", make([]byte, 300)); err != nil {
						t.Fatal(err)
					}
					_ = w.nc.Flush()
					r.engine.Upkeep.Compare(t.Context())
					return w.filling(r, name, bound) >= share
				})
			}
			key := map[string]string{"messages": "events.max_msgs", "bytes": "events.max_bytes"}[bound]
			fillUntil(0.8)
			if !tells(r, "stream RELAY_EVENTS", "% of "+key, "the oldest events are removed") {
				t.Errorf("the status: %q", r.Status().Trouble)
			}
			fillUntil(0.95)
			last := w.msgs(name)
			for range 20 {
				if _, err := w.js.Publish(t.Context(), event.Prefix("relay")+".test", make([]byte, 300)); err != nil {
					t.Fatalf("a full stream refuses an event: %v", err)
				}
			}
			now := w.msgs(name)
			if now.LastSeq < last.LastSeq+20 || now.FirstSeq <= last.FirstSeq {
				t.Errorf("before %+v, now %+v", last, now)
			}
			w.publish("orders.eu", 5)
			w.eventually("messages are handled", func() bool { return l.len() == 5 })
			if err := r.Ready(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of dead letters, and of their bodies that are stored apart.
func TestFill_deadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := Config{DLQ: dlq.Config{MaxMsgs: 10}}
	rt := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return Dead(errors.New("broken")) })}
	r, stop := w.start(cfg, rt)
	w.publish("orders.eu", 8)
	w.settled("ORDERS", "billing")
	r.engine.Upkeep.Compare(t.Context())
	if !tells(r, "stream RELAY_DLQ holds 8 messages", "80 % of dlq.max_msgs", "stay in their streams") || w.filling(r, "RELAY_DLQ", "messages") != 0.8 {
		t.Errorf("the status: %q", r.Status().Trouble)
	}
	w.publish("orders.eu", 7)
	w.eventually("five are refused, and wait", func() bool { return w.msgs("RELAY_DLQ").Msgs == 10 && w.info("ORDERS", "billing").NumAckPending == 5 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	cfg.DLQ.MaxMsgs = 20 // a higher bound of a stream that is there
	_, stop = w.start(cfg, rt)
	w.eventually("all are stored", func() bool { return w.msgs("RELAY_DLQ").Msgs == 15 })
	w.settled("ORDERS", "billing")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	cfg.DLQ.MaxMsgs, cfg.DLQ.OnFull = 12, dlq.OnFullDropOldest // a lower one: nothing goes that is there, until there is a new one
	r, _ = w.start(cfg, rt)
	if n := w.msgs("RELAY_DLQ").Msgs; n != 15 {
		t.Errorf("%d are left", n)
	}
	w.publish("orders.eu", 1)
	w.eventually("the newest is stored", func() bool { return w.msgs("RELAY_DLQ").Msgs == 12 })
	w.settled("ORDERS", "billing")
	if list := w.deadLetters(); len(list) != 12 || list[11].Sequence != 16 {
		t.Errorf("%d, the last one of message %d", len(list), list[len(list)-1].Sequence)
	}
	r.engine.Upkeep.Compare(t.Context())
	if !tells(r, "100 % of dlq.max_msgs", "the oldest will be dropped") {
		t.Errorf("the status: %q", r.Status().Trouble)
	}
}

func TestFill_bodiesOfDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{DLQ: dlq.Config{MaxBytes: 3_700_000}}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return Dead(errors.New("broken")) }),
	})
	large := make([]byte, w.nc.MaxPayload()-200) // with the headers of a dead letter it is larger than a message
	publish := func() {
		if _, err := w.js.Publish(t.Context(), "orders.eu", large); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		publish()
	}
	w.settled("ORDERS", "billing")
	w.eventually("it is said at 85 %", func() bool {
		r.engine.Upkeep.Compare(t.Context())
		return tells(r, "stream OBJ_RELAY_DLQ_BODIES", "85 % of dlq.max_bytes", "stay in their streams")
	})
	publish()
	w.eventually("the fourth is refused, and waits", func() bool {
		return w.info("ORDERS", "billing").NumAckPending == 1 && w.msgs("RELAY_DLQ").Msgs == 3
	})
	w.stays("it is not lost", func() bool { return w.info("ORDERS", "billing").NumAckPending == 1 })
}

// An instance of an earlier version knew no bound of stored events. It took the one of a newer instance for somebody's edit, and unset it.
func TestFill_regressionAnOlderInstanceBesideUnsetsABound(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	log := slog.New(slog.DiscardHandler)
	older := events.Stream("relay", 1, time.Hour, -1, 100_000)
	newer := events.Stream("relay", 1, time.Hour, 1<<20, 1000)
	if _, err := ownstream.Ensure(t.Context(), js, newer, log); err != nil {
		t.Fatal(err)
	}
	if _, err := ownstream.Check(t.Context(), js, older, ownstream.Running, log); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), newer.Name)
	if err != nil {
		t.Fatal(err)
	}
	if c := s.CachedInfo().Config; c.MaxBytes != 1<<20 || c.MaxMsgs != 1000 {
		t.Errorf("max_bytes is %d and max_msgs %d", c.MaxBytes, c.MaxMsgs)
	}
}
