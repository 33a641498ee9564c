package dlq

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
)

// due takes the next due message off the retry stream.
func due(t *testing.T, js jetstream.JetStream) jetstream.Msg {
	t.Helper()
	m, err := takes(t, js, "billing").Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func settle(t *testing.T, m jetstream.Msg) {
	t.Helper()
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestReplay_toItsRoute(t *testing.T) {
	s, js := setup(t, Config{})
	odd := entry(2)
	odd.Subject, odd.Header, odd.Replay = "orders.\xff.*", nats.Header{"A b": {" 1"}, "X": {"1", "2"}, "Nats-TTL": {"1s"}}, 3
	large := entry(3)
	large.Data, large.Header["X"] = randomBytes(1<<20), []string{"\x00"}
	put(t, s, entry(1), odd, large)
	for i, e := range collect(t, s, Filter{}) {
		want := []Entry{entry(1), odd, large}[i]
		if err := s.Replay(t.Context(), e, Target{Job: "job-1"}); err != nil {
			t.Fatal(err)
		}
		m := due(t, js)
		o, header, err := retry.Unwrap(m.Headers())
		if err != nil {
			t.Fatal(err)
		}
		data := m.Data()
		if BodyElsewhere(m.Headers()) != (i == 2) {
			t.Errorf("%d: body elsewhere: %v", i, BodyElsewhere(m.Headers()))
		}
		if i == 2 {
			if header, data, err = s.Body(t.Context(), m.Headers()); err != nil {
				t.Fatal(err)
			}
		}
		origin := want.Origin
		origin.Replay++
		origin.Job, origin.Attempts, origin.Deliveries, origin.LastError = "job-1", 0, 0, ""
		origin.FirstFailure, origin.LastFailure = time.Time{}, time.Time{}
		origin.Remember(retry.Past{Replay: want.Replay, Time: want.LastFailure, Attempts: 20, Reason: "exhausted", Error: "connection refused"})
		if d := cmp.Diff(origin, o); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(want.Header, header); d != "" {
			t.Error(d)
		}
		if !bytes.Equal(want.Data, data) {
			t.Errorf("%d: the body differs", i)
		}
		if err := s.Replay(t.Context(), e, Target{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("again: got %v, want ErrNotFound", err)
		}
		settle(t, m)
	}
	if n := messages(t, js, s.Name()); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestReplay_twiceIsOnce(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1))
	e := collect(t, s, Filter{})[0]

	var wg sync.WaitGroup
	for range 4 { // operators
		wg.Go(func() {
			if err := s.Replay(t.Context(), e, Target{}); err != nil && !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	settle(t, due(t, js))

	// A crash after the hand-over left the entry: it is there with the same origin, and its message is handled already.
	put(t, s, entry(1))
	e = collect(t, s, Filter{})[0]
	if err := s.Replay(t.Context(), e, Target{}); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, "RELAY_RETRY"); n != 0 {
		t.Errorf("%d due messages, want none", n)
	}
	if n := messages(t, js, s.Name()); n != 0 {
		t.Errorf("%d entries, want none", n)
	}
}

func TestReplay_keepsTheEntryWithoutAHandOver(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1))
	e := collect(t, s, Filter{})[0]
	if err := js.DeleteStream(t.Context(), "RELAY_RETRY"); err != nil {
		t.Fatal(err)
	}
	if err := s.Replay(t.Context(), e, Target{}); !errors.Is(err, ErrNoStream) {
		t.Errorf("no retry stream: got %v", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"relay.due.>"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Replay(t.Context(), e, Target{}); !errors.Is(err, ErrWrongStream) {
		t.Errorf("another stream: got %v", err)
	}
	if err := s.Replay(cancelled(t), e, Target{}); err == nil {
		t.Error("cancelled: no error")
	}
	e.Time = e.Time.Add(1)
	if err := s.Replay(t.Context(), e, Target{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("another origin: got %v", err)
	}
	if n := messages(t, js, s.Name()); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

func TestReplay_toSubject(t *testing.T) {
	s, js := setup(t, Config{})
	orders, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>", "fixed.>"}})
	if err != nil {
		t.Fatal(err)
	}
	// The original's own id, which the stream still knows, must not make the replay a duplicate.
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.eu.created", Header: nats.Header{"Nats-Msg-Id": {"m-1"}}}); err != nil {
		t.Fatal(err)
	}
	for i, target := range []string{ToOriginal, "fixed.orders"} {
		e := entry(1)
		e.Header["nats-rollup"], e.Header["Nats-Expected-Stream"] = []string{"all"}, []string{"X"}
		put(t, s, e)
		if err := s.Replay(t.Context(), collect(t, s, Filter{})[0], Target{Subject: target}); err != nil {
			t.Fatal(err)
		}
		m, err := orders.GetMsg(t.Context(), uint64(i+2))
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"orders.eu.created", "fixed.orders"}[i]; m.Subject != want || string(m.Data) != "body 1" {
			t.Errorf("%q on %q", m.Data, m.Subject)
		}
		for name := range m.Header {
			switch name {
			case "Trace-Id", "Relay-Deadline", "Nats-Msg-Id", "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp":
			default:
				t.Errorf("header %q", name)
			}
		}
		if id := m.Header.Get("Nats-Msg-Id"); id == "m-1" || id == "" {
			t.Errorf("message id %q", id)
		}
	}
	if n := messages(t, js, s.Name()); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestReplay_toSubjectRefuses(t *testing.T) {
	s, js := setup(t, Config{})
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	odd, large, unsendable := entry(1), entry(2), entry(3)
	odd.Subject = "orders.*"
	large.Data = randomBytes(1 << 20)
	unsendable.Header = nats.Header{"a b": {"1"}}
	put(t, s, odd, large, unsendable)
	list := collect(t, s, Filter{})
	for _, c := range []struct {
		entry  int
		target string
		want   error
	}{
		{0, ToOriginal, ErrRefused},
		{0, "$SYS.x", ErrRefused},
		{0, "_INBOX.x", ErrRefused},
		{0, "orders.>", ErrRefused},
		{0, "orders." + strings.Repeat("x", 4000), ErrRefused},
		{0, "relay.dlq.x", ErrRefused},
		{0, "relay.due.billing.x", ErrRefused},
		{0, "relay.park.billing.x", ErrRefused},
		{0, "relay.ctl.act.resume", ErrRefused},
		{0, "relay.event.audit.billing", ErrRefused},
		{0, "relay.later.wait.x.orders.x", ErrRefused},
		{0, "relay.later.in.x.orders.x", ErrRefused},
		{0, "nobody.listens", ErrNoStream},
		{1, ToOriginal, ErrTooLarge},
		{2, ToOriginal, ErrRefused},
	} {
		if err := s.Replay(t.Context(), list[c.entry], Target{Subject: c.target}); !errors.Is(err, c.want) {
			t.Errorf("%.40s: got %v, want %v", c.target, err, c.want)
		}
		if _, err := s.Plan(t.Context(), Choice{Subject: c.target}); errors.Is(err, ErrRefused) != (c.target != ToOriginal && c.want == ErrRefused) {
			t.Errorf("plan to %.40s: %v", c.target, err)
		}
	}
	if n := messages(t, js, s.Name()); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
}
