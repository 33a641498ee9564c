package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/retry"
)

// Each instance swept the records of its durables, hourly and at its start.
func TestRelay_oneInstanceSweepsTheRecordsOfADurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("USERS", "users.>")
	ok := HandlerFunc(func(context.Context, *Msg) error { return nil })
	orders := Route{Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, Handler: ok}
	users := Route{Name: "mail", Subjects: []string{"users.>"}, Start: StartAll, Handler: ok}
	other, _ := launch(t, w.s.Conn(t), Config{Logger: quiet, Instance: "other"}, users) // which does not read the durable
	all := map[*Relay]func() error{}
	var first, second *Relay
	for _, name := range []string{"a", "b"} {
		r, stop := launch(t, w.s.Conn(t), Config{Logger: quiet, Instance: name}, orders, users)
		all[r] = stop
	}
	know := func(r *Relay, n int) bool {
		l := r.engine.Stores.Lives.Load()
		return r.Ready() == nil && l != nil && l.Others() == n
	}
	w.eventually("all know all", func() bool {
		for r := range all {
			if !know(r, 2) {
				return false
			}
		}
		return know(other, 2)
	})
	billing := func(r *Relay) *source.Source {
		for _, s := range r.engine.Running.Sources() {
			if s.Stream == "ORDERS" {
				return s
			}
		}
		t.Fatal("the durable is not read")
		return nil
	}
	for r := range all {
		if billing(r).Sweeps(t.Context()) {
			first = r
		} else {
			second = r
		}
	}
	if first == nil || second == nil {
		t.Fatal("both or none of two instances sweep")
	}
	if _, err := w.js.Publish(t.Context(), "orders.eu", nil); err != nil {
		t.Fatal(err)
	}
	w.settled("ORDERS", "billing")
	kv, err := w.js.KeyValue(t.Context(), first.engine.Stores.AttemptsBucket())
	if err != nil {
		t.Fatal(err)
	}
	left := func() bool {
		t.Helper()
		keys, err := kv.Keys(t.Context())
		if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
			t.Fatal(err)
		}
		return len(keys) > 0
	}
	put := func() {
		t.Helper()
		// Of a message that is settled, and by an instance that is gone.
		if err := billing(second).Records.Put(t.Context(), 1, 1, retry.Record{LastFailure: time.Now(), Deliveries: 1}); err != nil {
			t.Fatal(err)
		}
		if !left() {
			t.Fatal("the record is not there")
		}
	}
	put()
	other.engine.Running.SweepRecords(t.Context())
	second.engine.Running.SweepRecords(t.Context())
	if !left() {
		t.Error("another instance than the one that sweeps has swept")
	}
	first.engine.Running.SweepRecords(t.Context())
	if left() {
		t.Error("the record of a settled message is not swept")
	}
	put()
	if err := all[first](); err != nil {
		t.Fatal(err)
	}
	w.eventually("the other one takes over", func() bool { return billing(second).Sweeps(t.Context()) })
	second.engine.Running.SweepRecords(t.Context())
	if left() {
		t.Error("the record is not swept after the one that swept is gone")
	}
}
