package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/provision"
)

// F25, I-23: a durable that is not as relay wants it is named, and left alone.
func TestRelay_durableThatDiffersIsNeverAlteredSilently(t *testing.T) {
	t.Parallel()
	plain := func() jetstream.ConsumerConfig {
		return jetstream.ConsumerConfig{
			Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: -1, MaxAckPending: provision.MaxAckPending,
		}
	}
	w := newWorld(t)
	for _, c := range []struct {
		field   string // as it is named to the user
		change  func(c *jetstream.ConsumerConfig)
		adopted bool // --adopt can change it
	}{
		{"ack_wait", func(c *jetstream.ConsumerConfig) { c.AckWait = 10 * time.Second }, true},
		{"ack_wait", func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour }, true},
		{"max_deliver", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 }, true},
		{"max_deliver", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 }, true},
		{"backoff", func(c *jetstream.ConsumerConfig) {
			c.MaxDeliver, c.BackOff, c.AckWait = 5, []time.Duration{time.Second, 4 * time.Second}, time.Second
		}, true},
		{"max_ack_pending", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1000 }, true},
		{"max_ack_pending", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = -1 }, true},
		{"filter_subjects", func(c *jetstream.ConsumerConfig) { c.FilterSubject = "orders.eu.>" }, true},
		{"filter_subjects", func(c *jetstream.ConsumerConfig) { c.FilterSubject = "orders.>" }, true},
		{"filter_subjects", func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"orders.eu.>", "orders.us.>"} }, true},
		{"inactive_threshold", func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour }, true},
		{"headers_only", func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, true},
		{"max_batch", func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 10 }, true},
		{"max_expires", func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = time.Minute }, true},
		{"max_bytes", func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 1 << 20 }, true},
		{"ack_policy", func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy }, false},
		{"ack_policy", func(c *jetstream.ConsumerConfig) { c.AckPolicy, c.MaxAckPending = jetstream.AckNonePolicy, 0 }, false},
		{"replay_policy", func(c *jetstream.ConsumerConfig) { c.ReplayPolicy = jetstream.ReplayOriginalPolicy }, false},
		{"mem_storage", func(c *jetstream.ConsumerConfig) { c.MemoryStorage = true }, false},
		{"priority_policy", func(c *jetstream.ConsumerConfig) {
			c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyPinned, []string{"a"}
		}, true},
	} {
		have := plain()
		c.change(&have)
		text, _ := json.Marshal(have)
		t.Run(c.field, func(t *testing.T) {
			w := &world{t: t, s: w.s, nc: w.nc, js: w.js}
			if _, err := w.js.CreateConsumer(t.Context(), "ORDERS", have); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			defer func() { _ = w.js.DeleteConsumer(context.Background(), "ORDERS", "billing") }()
			before := w.info("ORDERS", "billing").Config
			route := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}

			err := w.refused(Config{}, route)
			var differs *source.DiffersError
			if !errors.As(err, &differs) || differs.Durable != "billing" || differs.Stream != "ORDERS" {
				t.Fatalf("not refused: %v", err)
			}
			if !strings.Contains(err.Error(), c.field+" is ") || !strings.Contains(err.Error(), "--adopt") {
				t.Errorf("%s is not named: %v", c.field, err)
			}
			if diff := cmp.Diff(before, w.info("ORDERS", "billing").Config); diff != "" {
				t.Errorf("altered: %s", diff)
			}

			if !c.adopted {
				if err := w.refused(Config{Adopt: true}, route); !errors.As(err, &differs) {
					t.Errorf("adopted: %v", err)
				}
				if diff := cmp.Diff(before, w.info("ORDERS", "billing").Config); diff != "" {
					t.Errorf("altered: %s", diff)
				}
				return
			}
			_, stop := w.start(Config{Adopt: true}, route)
			after := w.info("ORDERS", "billing").Config
			want := plain()
			after.Metadata, after.Name, after.MaxWaiting = nil, "", 0 // which the server fills in
			if diff := cmp.Diff(want, after, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("adopted as %s", diff)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("push consumer", func(t *testing.T) {
		w := &world{t: t, s: w.s, nc: w.nc, js: w.js}
		if _, err := w.js.CreatePushConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "billing", DeliverSubject: "somewhere", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.js.DeleteConsumer(context.Background(), "ORDERS", "billing") }()
		err := w.refused(Config{Adopt: true}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
		if err == nil || !strings.Contains(err.Error(), "push consumer") {
			t.Errorf("not refused: %v", err)
		}
	})
}

// refused runs a relay that cannot start, and returns why.
func (w *world) refused(cfg Config, routes ...Route) error {
	w.t.Helper()
	nc := w.s.Conn(w.t)
	defer nc.Close()
	r, err := New(nc, cfg, routes...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if err = r.Run(ctx); ctx.Err() != nil {
		return fmt.Errorf("it ran: %w", err)
	}
	return err
}

// One route's durable is no reason to stop the others.
func TestRelay_routeWithADurableThatDiffersStopsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("INVOICES", "invoices.>")
	if _, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "billing", AckWait: time.Hour, AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	r, _ := w.startUnready(Config{},
		Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { t.Error("started"); return nil })},
		Route{Name: "printing", Subjects: []string{"invoices.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil })},
	)
	w.publish("orders.eu", 10)
	w.publish("invoices.eu", 10)
	w.eventually("the other route works", func() bool { return l.len() == 10 })
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "billing") || !strings.Contains(err.Error(), "ack_wait") {
		t.Errorf("ready says %v", err)
	}
	if i := w.info("ORDERS", "billing"); i.NumPending != 10 || i.Config.AckWait != time.Hour {
		t.Errorf("durable is touched: %+v", i)
	}
}
