package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/race"
)

func retryStream(t *testing.T) (*Stream, jetstream.JetStream) {
	t.Helper()
	js := natstest.Start(t).JetStream(t)
	r, err := OpenStream(t.Context(), js, "relay", "RELAY_RETRY", 1)
	if err != nil {
		t.Fatal(err)
	}
	return r, js
}

func originOf(seq uint64) Origin {
	return Origin{
		Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: seq, Time: madeAt, Subject: "orders.eu",
		Attempts: 3, Deliveries: 5, FirstFailure: madeAt, LastFailure: madeAt.Add(time.Minute), LastError: "no such customer",
	}
}

// due is the consumer of what is due on a route, of the stream ORDERS.
func due(t *testing.T, js jetstream.JetStream, r *Stream, route string) jetstream.Consumer {
	t.Helper()
	return dueOf(t, js, r, route, "ORDERS")
}

func dueOf(t *testing.T, js jetstream.JetStream, r *Stream, route, stream string) jetstream.Consumer {
	t.Helper()
	c, err := js.CreateConsumer(t.Context(), r.Name(), jetstream.ConsumerConfig{
		Durable: DueDurable(route, stream), AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: r.DueSubjects(route, stream),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func messages(t *testing.T, js jetstream.JetStream, subject string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), "RELAY_RETRY")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for _, m := range info.State.Subjects {
		n += m
	}
	return n
}

// A parked message comes when its wait is over: never before, and a quarter of a second after it at most (the server's
// scheduler looks that often). It brings everything with it.
func TestRetryStream_parkedMessagesComeInTime(t *testing.T) {
	r, js := retryStream(t)
	c := due(t, js, r, "billing")
	const n = 40
	header := nats.Header{"Nats-Msg-Id": {"id"}, "Trace": {"a", "b"}, "Relay-Attempts": {"99"}}
	start := time.Now()
	dues := make([]time.Time, n+1)
	for seq := uint64(1); seq <= n; seq++ {
		dues[seq] = start.Add(500*time.Millisecond + time.Duration(seq)*37*time.Millisecond + 123457)
		if err := r.Park(t.Context(), originOf(seq), header, fmt.Append(nil, "body ", seq), dues[seq], Room{Messages: 1000}, 0); err != nil {
			t.Fatal(err)
		}
	}
	late := make([]time.Duration, 0, n)
	for range n {
		m, err := c.Next(jetstream.FetchMaxWait(patience))
		if err != nil {
			t.Fatal(err)
		}
		o, h, err := Unwrap(m.Headers())
		if err != nil {
			t.Fatal(err)
		}
		// When the server stored it is when it came due; the way to this test adds what the machine is busy with.
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, meta.Timestamp.Sub(dues[o.Sequence]))
		want := originOf(o.Sequence)
		want.Time, want.FirstFailure, want.LastFailure = want.Time.UTC(), want.FirstFailure.UTC(), want.LastFailure.UTC()
		want.Due = dues[o.Sequence].UTC()
		if diff := cmp.Diff(want, o); diff != "" {
			t.Errorf("changed on the way: %s", diff)
		}
		if string(m.Data()) != fmt.Sprint("body ", o.Sequence) || len(h) != len(header) || h.Get("Nats-Msg-Id") != "id" || !slices.Equal(h["Trace"], header["Trace"]) {
			t.Errorf("came with %v and %q", h, m.Data())
		}
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(late)
	t.Logf("late by %v to %v", late[0], late[n-1])
	if late[0] < 0 {
		t.Errorf("%v early", -late[0])
	}
	if late[n-1] > race.Slower*300*time.Millisecond {
		t.Errorf("%v late", late[n-1])
	}
	natstest.Eventually(t, "nothing is left", func() bool { return messages(t, js, "relay.>") == 0 })
}

// A lost ack has the original come again, fail again, and be parked again.
func TestRetryStream_parkingAgainReplaces(t *testing.T) {
	r, js := retryStream(t)
	c := due(t, js, r, "billing")
	o := originOf(1)
	for range 3 {
		o.Attempts++
		if err := r.Park(t.Context(), o, nil, nil, time.Now().Add(700*time.Millisecond), Room{Messages: 1000}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if n := messages(t, js, "relay.park.>"); n != 1 {
		t.Fatalf("%d schedules, want 1", n)
	}
	m, err := c.Next(jetstream.FetchMaxWait(patience))
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := Unwrap(m.Headers()); err != nil || got.Attempts != o.Attempts {
		t.Errorf("came with %d attempts, %v; want %d", got.Attempts, err, o.Attempts)
	}
	if n := messages(t, js, "relay.>"); n != 1 {
		t.Errorf("%d messages left beside it", n-1)
	}
}

func TestRetryStream_whatCannotBeParked(t *testing.T) {
	r, js := retryStream(t)
	soon := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		header nats.Header
		size   int
		check  func(error) bool
	}{
		"a body at max_payload": {nil, 1 << 20, func(err error) bool { return errors.Is(err, nats.ErrMaxPayload) }},
		"headers of 64 KiB": {nats.Header{"X": {strings.Repeat("x", 64<<10)}}, 1, func(err error) bool {
			var api *jetstream.APIError
			return errors.As(err, &api) && api.ErrorCode == 10097
		}},
	} {
		if err := r.Park(t.Context(), originOf(1), c.header, make([]byte, c.size), soon, Room{Messages: 1000}, 0); !c.check(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := messages(t, js, "relay.>"); n != 0 {
		t.Errorf("%d messages were stored", n)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Park(over, originOf(1), nil, nil, soon, Room{Messages: 1000}, 0); err == nil {
		t.Error("parked without a server")
	}
}

func TestRetryStream_limit(t *testing.T) {
	r, _ := retryStream(t)
	soon := time.Now().Add(time.Hour)
	for seq := range uint64(5) {
		if err := r.Park(t.Context(), originOf(seq+1), nil, nil, soon, Room{Messages: 5}, 0); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "the limit is noticed", func() bool {
		return errors.Is(r.Park(t.Context(), originOf(6), nil, nil, soon, Room{Messages: 5}, 0), ErrParkFull)
	})
	if err := r.Park(t.Context(), originOf(7), nil, nil, soon, Room{Messages: 1000}, 0); err != nil {
		t.Errorf("under another limit: %v", err)
	}
}

// Two routes and two streams share the retry stream, and none gets what is another's.
func TestRetryStream_routesAreApart(t *testing.T) {
	r, js := retryStream(t)
	all := [][2]string{{"billing", "ORDERS"}, {"billing", "Bestellungen-größer"}, {"mail", "ORDERS"}}
	consumers := make(map[[2]string]jetstream.Consumer)
	o := originOf(1)
	for _, where := range all {
		consumers[where] = dueOf(t, js, r, where[0], where[1])
		o.Route, o.Stream = where[0], where[1]
		if err := r.Park(t.Context(), o, nil, nil, time.Now(), Room{Messages: 1000}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for where, c := range consumers {
		m, err := c.Next(jetstream.FetchMaxWait(patience))
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := Unwrap(m.Headers()); err != nil || got.Route != where[0] || got.Stream != where[1] {
			t.Errorf("%v got a message of %s and %s, %v", where, got.Route, got.Stream, err)
		}
		if n := c.CachedInfo().NumPending; n > 1 {
			t.Errorf("%v has %d messages", where, n)
		}
	}
}
