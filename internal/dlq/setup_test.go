package dlq

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// setup is a server, its dead letters and the retry stream that belongs to them.
func setup(t *testing.T, cfg Config, opts ...natstest.Option) (*Store, jetstream.JetStream) {
	t.Helper()
	js := natstest.Start(t, opts...).JetStream(t)
	s, err := Open(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"},
		Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, Duplicates: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	takes(t, js, "billing")
	return s, js
}

// takes makes the durable with which a route takes what is replayed to it from stream ORDERS.
func takes(t testing.TB, js jetstream.JetStream, route string) jetstream.Consumer {
	t.Helper()
	c, err := js.CreateOrUpdateConsumer(t.Context(), "RELAY_RETRY", jetstream.ConsumerConfig{Durable: retry.DueDurable(route, "ORDERS"), FilterSubject: "relay.due." + route + ".ORDERS.>"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var storedAt = time.Date(2026, 3, 4, 5, 6, 7, 890123456, time.UTC)

// entry is one with every field set; seq tells it from others.
func entry(seq uint64) Entry {
	return Entry{
		Origin: Origin{
			Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: seq, Time: storedAt.Add(time.Duration(seq)),
			Subject: "orders.eu.created", Attempts: 20, Deliveries: 23,
			FirstFailure: storedAt.Add(time.Second), LastFailure: storedAt.Add(time.Minute), LastError: "connection refused",
		},
		Header: nats.Header{"Trace-Id": {"a", "b"}, "Nats-Msg-Id": {"m-1"}, "Relay-Deadline": {"soon"}},
		Data:   fmt.Appendf(nil, "body %d", seq), Reason: Exhausted, Stack: []byte("goroutine 1:\n\tmain.go:1\n"), Instance: "host-1",
	}
}

func put(t *testing.T, s *Store, entries ...Entry) {
	t.Helper()
	for _, e := range entries {
		if err := s.Put(t.Context(), "", e); err != nil {
			t.Fatalf("put %d: %v", e.Sequence, err)
		}
	}
}

// sameEntry compares what was put with what was read.
func sameEntry(t *testing.T, want, got Entry) {
	t.Helper()
	ignore := cmp.Options{
		cmpopts.IgnoreFields(Entry{}, "StoredSubject", "StoredSequence", "StoredTime", "Size"),
		cmpopts.IgnoreUnexported(Entry{}), cmpopts.EquateEmpty(),
	}
	if !bytes.Equal(want.Data, got.Data) {
		t.Errorf("body of %d bytes differs from the one of %d bytes", len(got.Data), len(want.Data))
	}
	want.Data, got.Data = nil, nil
	if d := cmp.Diff(want, got, ignore); d != "" {
		t.Error(d)
	}
}

func messages(t *testing.T, js jetstream.JetStream, stream string) int {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return int(s.CachedInfo().State.Msgs)
}

func collect(t *testing.T, s *Store, f Filter) []Entry {
	t.Helper()
	var all []Entry
	for e, err := range s.List(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// manyHeaders is a header block of about n bytes.
func manyHeaders(n int) nats.Header {
	h := nats.Header{"Long": {strings.Repeat("v", 1000)}}
	for i := 0; (&nats.Msg{Header: h}).Size() < n-40; i++ {
		h.Add("Many", fmt.Sprintf("value %026d", i))
	}
	return h
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
