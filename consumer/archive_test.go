package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/supervisor"
)

// found waits for the records of a message.
func (w *world) found(stream string, sequence uint64, n int) (list []archive.Found) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d records of message %d", n, sequence), func() bool {
		var err error
		if list, err = archive.Find(w.t.Context(), w.js, "relay", stream, sequence, time.Time{}); err != nil {
			w.t.Fatal(err)
		}
		return len(list) >= n
	})
	return list
}

// What became of messages is found: of each outcome, with its attempts, its route and its instance, and with what the handler returned.
func TestArchive_everyOutcomeIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	handler := HandlerFunc(func(_ context.Context, m *Msg) error {
		m.Reply([]byte("result of attempt " + fmt.Sprint(m.Attempt)))
		switch {
		case strings.HasSuffix(m.Subject, ".second") && m.Attempt == 1, strings.HasSuffix(m.Subject, ".parked") && m.Attempt == 1:
			return errors.New("not yet")
		case strings.HasSuffix(m.Subject, ".large"):
			m.Reply(make([]byte, 10<<10))
		case strings.HasSuffix(m.Subject, ".dead"):
			return Dead(errors.New("no such customer"))
		case strings.HasSuffix(m.Subject, ".drop"):
			return Drop("not wanted")
		case strings.HasSuffix(m.Subject, ".never"), strings.HasSuffix(m.Subject, ".other"):
			return errors.New("never")
		}
		return nil
	})
	rt := permitted(Route{
		Retry: Retry{MaxAttempts: 2, Backoff: supervisor.Backoff{Policy: supervisor.Constant, Min: 50 * time.Millisecond}, ParkAfter: 10 * time.Millisecond}, Handler: handler,
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
		Fallback: &Fallback{When: []string{FallbackExhausted}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if strings.HasSuffix(m.Subject, ".other") {
				return nil
			}
			return errors.New("nor here")
		})},
	})
	r, stop := w.start(Config{Archive: Archive{Outcomes: true, Results: true}, Instance: "here"}, rt)
	no := w.caller(sayNo)
	for _, what := range []string{"first", "second", "large", "dead", "drop", "never", "other", "parked"} {
		w.publish("orders."+what, 1)
	}
	no.publish("orders.forgotten", "", nil)
	for _, h := range []nats.Header{{"Relay-Deadline": {time.Now().Add(-time.Hour).Format(time.RFC3339)}}, {"Relay-Reply-To": {no.inbox + ".r"}}} {
		if _, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.late", Header: h}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for i, want := range []archive.Record{
		{Outcome: archive.Done, Attempts: 1, Result: []byte("result of attempt 1")},
		{Outcome: archive.Done, Attempts: 2, Result: []byte("result of attempt 2")},
		{Outcome: archive.Done, Attempts: 1, Result: make([]byte, 4<<10), Cut: true},
		{Outcome: archive.Dead, Attempts: 1, Reason: "dead"},
		{Outcome: archive.Dropped},
		{Outcome: archive.Dead, Attempts: 2, Reason: "exhausted"},
		{Outcome: archive.Fallback, Attempts: 2},
		{Outcome: archive.Done, Attempts: 2, Result: []byte("result of attempt 2")},
		{Outcome: archive.Forgotten},
		{Outcome: archive.Expired},
		{Outcome: archive.Done, Attempts: 1, Result: []byte("result of attempt 1")}, // whose caller has it, too
	} {
		seq := uint64(i + 1)
		list := w.found("ORDERS", seq, 1)
		got := list[0]
		if len(list) != 1 || got.Outcome != want.Outcome || got.Attempts != want.Attempts || got.Reason != want.Reason || string(got.Result) != string(want.Result) || got.Cut != want.Cut {
			t.Errorf("message %d: %+v, want %+v", seq, list, want)
		}
		m, err := w.js.Stream(t.Context(), "ORDERS")
		if err != nil {
			t.Fatal(err)
		}
		stored, err := m.GetMsg(t.Context(), seq)
		if err != nil || !got.Published.Equal(stored.Time) || got.Route != "billing" || got.Durable != "billing" || got.Instance != "here" || got.Ended.Before(stored.Time.Truncate(time.Millisecond)) {
			t.Errorf("message %d: %+v of %+v, %v", seq, got, stored, err)
		}
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
	// The end writes the rest.
	w.publish("orders.last", 1)
	w.settled("ORDERS", "billing")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if list, err := archive.Find(t.Context(), w.js, "relay", "ORDERS", 12, time.Now()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if n := r.engine.Archive.Stored(); n != 12 || r.engine.Archive.Dropped() != 0 {
		t.Errorf("%d written, %d dropped", n, r.engine.Archive.Dropped())
	}
}

// A stream that may not be written to slows nothing: the records are counted, and neither messages nor the end wait for them.
func TestArchive_aDeniedStreamSlowsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natstest.WithConfig(`no_auth_user: test
		authorization {users: [{user: test, password: test}, {user: relay, password: relay, permissions: {publish: {deny: "relay.archive.>"}}}]}`))
	l := newLedger()
	r, err := New(w.s.Conn(t, nats.UserInfo("relay", "relay"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), nats.ReconnectBufSize(-1)), Config{Archive: Archive{Outcomes: true}}, countingRoute(l))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.eventually("relay is ready", func() bool { return r.Ready() == nil })
	w.publish("orders.eu", 500)
	w.eventually("all are handled", func() bool { return l.len() == 500 })
	w.settled("ORDERS", "billing")
	if err := r.Ready(); err != nil {
		t.Error(err)
	}
	began := time.Now()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("the end took %v", d)
	}
	if s, d := r.engine.Archive.Stored(), r.engine.Archive.Dropped(); s != 0 || d != 500 {
		t.Errorf("%d written, %d dropped", s, d)
	}
}

// A server that is gone for a while costs no record: what became of messages meanwhile is written when it is back, once.
func TestArchive_aServerThatIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	r, _ := w.start(Config{Archive: Archive{Outcomes: true}, Logger: quiet}, countingRoute(l))
	w.publish("orders.eu", 200)
	w.eventually("some are handled", func() bool { return l.len() > 50 })
	w.s.Stop()
	w.s.Restart()
	w.eventually("all are handled", func() bool { return l.len() == 200 })
	w.settled("ORDERS", "billing")
	w.eventually("all are written", func() bool { return r.engine.Archive.Stored() >= 200 })
	for _, seq := range []uint64{1, 100, 200} {
		if list := w.found("ORDERS", seq, 1); list[0].Outcome != archive.Done {
			t.Errorf("%+v", list)
		}
	}
	if n := r.engine.Archive.Dropped(); n != 0 {
		t.Errorf("%d dropped", n)
	}
}

// A stream that somebody deletes is made again when there is something to write.
func TestArchive_aDeletedStreamIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	r, _ := w.start(Config{Archive: Archive{Outcomes: true, MaxAge: time.Hour, MaxBytes: 1 << 20, MaxMsgs: 10}}, countingRoute(l))
	w.publish("orders.eu", 1)
	w.found("ORDERS", 1, 1)
	if err := w.js.DeleteStream(t.Context(), "RELAY_ARCHIVE"); err != nil {
		t.Fatal(err)
	}
	w.publish("orders.eu", 1)
	w.eventually("it is there again", func() bool {
		_, err := w.js.Stream(t.Context(), "RELAY_ARCHIVE")
		return err == nil
	})
	w.found("ORDERS", 2, 1)
	s, err := w.js.Stream(t.Context(), "RELAY_ARCHIVE")
	if err != nil {
		t.Fatal(err)
	}
	if c := s.CachedInfo().Config; c.MaxAge != time.Hour || c.MaxBytes != 1<<20 || c.MaxMsgs != 10 || c.Compression != jetstream.S2Compression || c.Discard != jetstream.DiscardOld {
		t.Errorf("%+v", c)
	}
	if r.engine.Archive.Dropped() != 0 {
		t.Errorf("%d dropped", r.engine.Archive.Dropped())
	}
	// An edit that would lose records is set back.
	edited := s.CachedInfo().Config
	edited.MaxAge = 10 * time.Minute
	if _, err := w.js.UpdateStream(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is set back", func() bool {
		s, err := w.js.Stream(t.Context(), "RELAY_ARCHIVE")
		return err == nil && s.CachedInfo().Config.MaxAge == time.Hour
	})
	for range 20 {
		if _, err := w.js.Publish(t.Context(), "relay.archive.ORDERS", nil); err != nil {
			t.Fatal(err)
		}
	}
	r.engine.Upkeep.Compare(t.Context())
	if share := w.filling(r, "RELAY_ARCHIVE", "messages"); share != 1 || !tells(r, "stream RELAY_ARCHIVE", "archive.max_msgs", "the oldest records are removed") {
		t.Errorf("full to %v; the status: %q", share, r.Status().Trouble)
	}
}

// Off there is nothing: no writer, no stream, no result of a message that nobody waits for. On, a record allocates nothing.
func TestArchive_costs(t *testing.T) {
	cfg := Route{Name: "r", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	r, err := New(&nats.Conn{}, Config{Archive: Archive{Results: true}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.engine.Routes.All()[0].Group.Close(context.Background())
	if r.engine.Archive != nil || r.engine.Config.Results {
		t.Errorf("off: %v, %+v", r.engine.Archive, r.engine.Config.Archive)
	}
	for _, c := range r.engine.OwnStreams() {
		if strings.Contains(c.Name, "ARCHIVE") {
			t.Errorf("off there is %s", c.Name)
		}
	}
	on, err := New(&nats.Conn{}, Config{Archive: Archive{Outcomes: true}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer on.engine.Routes.All()[0].Group.Close(context.Background())
	s, rt := source.New(on.engine.Durables, "ORDERS", "d"), on.engine.Routes.All()[0]
	m := new(route.Message)
	m.Source, m.Durable, m.Route, m.Path = s, &s.Durable, &rt.Source, rt.Path
	m.Delivery = &ack.Delivery{Sequence: 7, Time: time.Now()}
	m.ToArchive(on.engine.Archive, supervise.Outcome{Action: supervise.AckMessage}) // the batch begins
	if n := testing.AllocsPerRun(1000, func() { m.ToArchive(on.engine.Archive, supervise.Outcome{Action: supervise.AckMessage}) }); n != 0 {
		t.Errorf("%v allocations for a record", n)
	}
}
