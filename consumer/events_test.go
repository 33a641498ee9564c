package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/supervisor"
)

// What an operator may want to know is heard by a stock client, kept in the stream, handled by a route, and told to the program
// itself; the route that handles events adds none, though it fails.
func TestEvents_areHeardStoredAndHandled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	heard := map[event.Kind][]event.Event{}
	sub, err := w.nc.Subscribe("relay.event.>", func(m *nats.Msg) {
		var e event.Event
		if err := json.Unmarshal(m.Data, &e); err != nil || e.Subject() != m.Subject || m.Header.Get("Content-Type") != eventkind.ContentType {
			t.Errorf("on %s: %s: %v", m.Subject, m.Data, err)
		}
		mu.Lock()
		defer mu.Unlock()
		heard[e.Kind] = append(heard[e.Kind], e)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	down.Store(true)
	alerts := newLedger()
	r, stop := w.start(Config{Events: Events{Store: true}}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Retry: Retry{MaxAttempts: 2, Backoff: supervisor.Backoff{Min: 100 * time.Millisecond, Max: 200 * time.Millisecond}},
		Supervisor: supervisor.Config{TripAfter: new(2), Restart: supervisor.Backoff{Min: 50 * time.Millisecond, Max: 100 * time.Millisecond}},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if strings.HasSuffix(m.Subject, ".bad") {
				return Dead(errors.New("no such customer"))
			}
			if down.Load() {
				return errors.New("connection refused")
			}
			return nil
		}),
	}, Route{
		Name: "alert", Subjects: []string{"relay.event.>"}, Start: Start{Policy: "all"}, Retry: Retry{MaxAttempts: 1},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			alerts.note(m)
			return errors.New("Slack is away")
		}),
	})
	has := func(kind event.Kind) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(heard[kind]) > 0
		}
	}
	w.publish("orders.bad", 1)
	w.eventually("dead_letter", has(eventkind.DeadLetter))
	w.publish("orders.1", 4)
	w.eventually("key.waiting", has(eventkind.KeyWaiting))
	down.Store(false)
	w.eventually("key.flowing", has(eventkind.KeyFlowing))
	w.eventually("the alerts are handled", func() bool { return alerts.len() >= 3 })
	w.settled("RELAY_EVENTS", "alert")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	told := map[event.Kind]bool{}
	for e := range r.Events() { // closed, now that Run has returned
		told[e.Kind] = true
	}
	mu.Lock()
	defer mu.Unlock()
	for kind, list := range heard {
		for _, e := range list {
			if e.Route == "alert" {
				t.Errorf("an event about the route that handles events: %s %+v", kind, e)
			}
		}
	}
	for _, kind := range []event.Kind{eventkind.DeadLetter, eventkind.KeyWaiting, eventkind.KeyFlowing} {
		if !told[kind] {
			t.Errorf("Relay.Events did not tell of %s", kind)
		}
	}
	d := heard[eventkind.DeadLetter][0]
	if d.Route != "billing" || d.Subject() != "relay.event.dead_letter.billing" || d.Why != "no such customer" || d.Reason != "dead" || d.Data.Subject != "orders.bad" || d.Message == "" {
		t.Errorf("%+v", d)
	}
	if k := heard[eventkind.KeyWaiting][0]; k.Key != "orders.1" || k.Until.IsZero() || !strings.Contains(k.Why, "connection refused") {
		t.Errorf("%+v", k)
	}
	stream, err := w.js.Stream(t.Context(), "RELAY_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	list, err := events.Stored(t.Context(), stream, []string{"relay.event.dead_letter.*"}, time.Time{}, 10)
	if err != nil || len(list) == 0 {
		t.Errorf("%d stored, %v", len(list), err)
	}
	if list, err = events.Stored(t.Context(), stream, []string{"relay.event.*.nobody"}, time.Time{}, 10); err != nil || len(list) != 0 {
		t.Errorf("%d stored, %v", len(list), err)
	}
}

// A stream of somebody else's that has the events already is a fault that the start names.
func TestEvents_cannotBeStoredTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("MINE", "relay.event.>")
	r, err := New(w.s.Conn(t, nats.ReconnectBufSize(-1)), Config{Events: Events{Store: true}}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Run(t.Context())
	var setup *SetupError
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "RELAY_EVENTS, for events.store") {
		t.Errorf("Run returned %v", err)
	}
	if _, err := w.js.Stream(t.Context(), "RELAY_EVENTS"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Error(err)
	}
}
