package dlq_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// What a program does with dead letters: it looks at them, replays one, publishes one anew, and discards one.
func TestStore_readsAndHandsBack(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dlq.Attach(t.Context(), js, ""); !errors.Is(err, dlq.ErrNoStream) {
		t.Fatalf("%v, want that there are none yet", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	mended := make(chan string, 10)
	var broken atomic.Bool
	broken.Store(true)
	r, err := consumer.New(nc, consumer.Config{}, consumer.Route{
		Name: "billing", Subjects: []string{"orders.*"}, Start: consumer.StartAll, Concurrency: 1,
		Handler: consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			if broken.Load() {
				return consumer.Dead(errors.New("the account is closed"))
			}
			mended <- m.Subject + " " + m.Header.Get("Trace")
			return nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for _, subject := range []string{"orders.eu", "orders.us", "orders.br"} {
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: []byte(`{"id": 7}`), Header: nats.Header{"Trace": {"abc"}}}); err != nil {
			t.Fatal(err)
		}
	}
	var store *dlq.Store
	for n := 0; n < 3; time.Sleep(10 * time.Millisecond) {
		if store, err = dlq.Attach(t.Context(), js, "relay"); errors.Is(err, dlq.ErrNoStream) {
			continue
		}
		if err == nil {
			n, _, err = store.Count(t.Context(), dlq.Filter{Route: "billing"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	broken.Store(false)
	body, err := dlq.ParseBodyMatch(".id=7")
	if err != nil {
		t.Fatal(err)
	}
	bySubject := map[string]dlq.Entry{}
	for e, err := range store.List(t.Context(), dlq.Filter{Route: "billing", Reason: dlq.Rejected, Body: []dlq.BodyMatch{body}}) {
		if err != nil {
			t.Fatal(err)
		}
		bySubject[e.Subject] = e
	}
	if len(bySubject) != 3 {
		t.Fatalf("%d entries", len(bySubject))
	}
	eu, us, br := bySubject["orders.eu"], bySubject["orders.us"], bySubject["orders.br"]
	if e, err := store.Get(t.Context(), eu.StoredSequence); err != nil || string(e.Data) != `{"id": 7}` || e.Header.Get("Trace") != "abc" || e.LastError != "the account is closed" {
		t.Errorf("%+v, %v", e, err)
	}
	if err := store.Replay(t.Context(), eu); err != nil {
		t.Fatal(err)
	}
	if got := <-mended; got != "orders.eu abc" {
		t.Errorf("replayed: %s", got)
	}
	if err := store.Publish(t.Context(), us, "orders.again"); err != nil {
		t.Fatal(err)
	}
	if got := <-mended; got != "orders.again abc" {
		t.Errorf("published: %s", got)
	}
	if err := store.Publish(t.Context(), br, ""); err != nil {
		t.Fatal(err)
	}
	if got := <-mended; got != "orders.br abc" {
		t.Errorf("published on its own subject: %s", got)
	}
	for _, e := range bySubject {
		if err := store.Discard(t.Context(), e.StoredSequence); !errors.Is(err, dlq.ErrNotFound) {
			t.Errorf("%s: %v, want that it is gone", e.Subject, err)
		}
	}
	if n, _, err := store.Count(t.Context(), dlq.Filter{}); err != nil || n != 0 {
		t.Errorf("%d are left, %v", n, err)
	}
}
