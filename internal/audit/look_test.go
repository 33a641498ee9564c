package audit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// The auditor counts what the server has: outstanding, parked and due messages, of all routes of a stream or of those of the record.
func TestAuditor_Audit(t *testing.T) {
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []jetstream.StreamConfig{
		{Name: "ORDERS", Subjects: []string{"orders.>"}},
		{Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"}, AllowDirect: true},
	} {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	d, err := js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(subject string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		publish("orders.1")
	}
	batch, err := d.Fetch(4)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for m := range batch.Messages() { // three are settled, one is in hand
		if n++; n < 4 {
			if err := m.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("relay.park.billing.ORDERS.1")
	publish("relay.due.billing.ORDERS.2")
	publish("relay.park.gone.ORDERS.3") // of a route that is no more
	publish("relay.park.billing.OTHER.4")

	book, err := Open(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	info, err := d.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := &Auditor{JS: js, API: "$JS.API.", Service: "relay", Retry: "RELAY_RETRY", Book: book}
	audit := func(of Scope) Balance {
		t.Helper()
		b, err := a.Audit(t.Context(), "ORDERS", "billing", of, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if _, err := a.Audit(t.Context(), "ORDERS", "billing", OwnRoutes, 0); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("without a record: %v", err)
	}
	// Four came: one is done, two were parked and one is in hand.
	w := NewWriter("ORDERS", "billing", "one", "a")
	err = w.Finish(t.Context(), book, &Addition{
		Routes:   map[string]Counts{"billing": {Received: 4, Done: 1}},
		Durables: map[string]Durable{Name("ORDERS", "billing"): {Start{Created: info.Created}, Deliveries{Arrived: 4, First: 4}}},
		Opening:  Opening{At: info.Created},
	})
	if err != nil {
		t.Fatal(err)
	}
	if b := audit(OwnRoutes); b.Verdict != Balanced || b.Outstanding != 1 || b.Parked != 2 || b.NotDelivered != 1 || !b.Whole {
		t.Errorf("%+v", b)
	}
	if b := audit(AllRoutes); b.Verdict != Explained || b.Parked != 3 || b.Difference != -1 { // the one in hand may have ended before
		t.Errorf("with those of a route that is gone: %+v", b)
	}
	a.Operated = func(context.Context, string, time.Time) (map[string]Counts, error) {
		return map[string]Counts{"billing": {Discarded: 1}, "gone": {Discarded: 7}}, nil
	}
	if b := audit(OwnRoutes); b.Difference != -1 || b.Total.Discarded != 1 {
		t.Errorf("after one was discarded that waits still: %+v", b)
	}
	a.Operated = func(context.Context, string, time.Time) (map[string]Counts, error) {
		return nil, context.DeadlineExceeded
	}
	if _, err := a.Audit(t.Context(), "ORDERS", "billing", OwnRoutes, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	a.Operated = nil
	if list, bad, err := book.List(t.Context()); err != nil || len(list) != 1 || len(bad) > 0 || list[0].Durable != "billing" {
		t.Errorf("%v, %v, %v", list, bad, err)
	}
	if _, err := book.KV().PutString(t.Context(), "ORDERS.newer", `{"format": 99}`); err != nil {
		t.Fatal(err)
	}
	if list, bad, err := book.List(t.Context()); err != nil || len(list) != 1 || !errors.Is(bad["ORDERS.newer"], ErrNewer) {
		t.Errorf("%v, %v, %v", list, bad, err)
	}
	if err := js.DeleteConsumer(t.Context(), "ORDERS", "billing"); err != nil {
		t.Fatal(err)
	}
	if b := audit(OwnRoutes); b.Verdict != Unknown {
		t.Errorf("without the durable: %+v", b)
	}
	if _, _, err := Matching(t.Context(), nc, "$JS.API.", "NOWHERE", "x"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
}

// What a balance says beside its figures.
func TestBalance_texts(t *testing.T) {
	b := Balance{Verdict: Balanced, Total: Counts{Dead: 3}}
	if b.SetDeadLetters(DeadLetters{Stored: 3}, "none"); b.Verdict != Balanced {
		t.Errorf("%+v", b)
	}
	if b.SetDeadLetters(DeadLetters{Stored: 3, AtLeast: 2, AtMost: 2}, "2"); b.Verdict != Lost || !strings.Contains(b.Text, "2 are missing") {
		t.Errorf("%+v", b)
	}
	for name, c := range map[string]struct {
		b    Balance
		want []string
	}{
		"missing":   {Balance{Difference: 3, Bound: 1}, []string{"no outcome was counted for 3 messages", "explains 1", "limits of the stream"}},
		"explained": {Balance{Difference: 3, Bound: 3, Killed: 2, Uncounted: 1, moved: 4}, []string{"1 deliveries were not counted", "4 messages moved", "had 2 messages in hand"}},
		"twice":     {Balance{Difference: -2, Bound: 2, Twice: 2, Uncounted: -1}, []string{"2 more outcomes were counted", "the server's count of deliveries went back by 1", "2 messages may have come twice"}},
		"unsure":    {Balance{Difference: -2, Bound: 2}, []string{"stored twice"}},
	} {
		c.b.judge()
		for _, text := range c.want {
			if !strings.Contains(c.b.Text, text) {
				t.Errorf("%s: %q does not say %q", name, c.b.Text, text)
			}
		}
	}
	missing := Balance{Difference: 1}
	missing.judge()
	if missing.SetEdits([]string{"somebody purged the retry stream"}); !strings.HasSuffix(missing.Text, "somebody purged the retry stream") {
		t.Errorf("%+v", missing)
	}
}

// An instance may not have written yet what it counted: the auditor looks again until it balances, or until nobody waits for the answer.
func TestAuditor_looksAgain(t *testing.T) {
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	retry := jetstream.StreamConfig{Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"}, AllowDirect: true}
	if _, err := js.CreateStream(t.Context(), retry); err != nil {
		t.Fatal(err)
	}
	d, err := js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	book, err := Open(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	w := NewWriter("ORDERS", "billing", "one", "a")
	add := func(c Counts) {
		a := &Addition{
			Routes: map[string]Counts{"billing": c}, Opening: Opening{At: time.Now()},
			Durables: map[string]Durable{Name("ORDERS", "billing"): {Start: Start{Created: d.CachedInfo().Created}}},
		}
		if err := w.Add(t.Context(), book, a); err != nil {
			t.Error(err)
		}
	}
	add(Counts{Received: 1})
	looks := 0
	a := &Auditor{JS: js, API: "$JS.API.", Service: "relay", Retry: "RELAY_RETRY", Book: book}
	a.Operated = func(context.Context, string, time.Time) (map[string]Counts, error) {
		if looks++; looks == 1 {
			add(Counts{Done: 1}) // after this look has read the record
		}
		return nil, nil
	}
	if b, err := a.Audit(t.Context(), "ORDERS", "billing", OwnRoutes, time.Minute); err != nil || b.Verdict != Balanced || looks != 2 {
		t.Errorf("%d looks: %+v, %v", looks, b, err)
	}
	add(Counts{Received: 1})
	ctx, cancel := context.WithCancel(t.Context())
	a.Operated = func(context.Context, string, time.Time) (map[string]Counts, error) { cancel(); return nil, nil }
	if b, err := a.Audit(ctx, "ORDERS", "billing", OwnRoutes, time.Minute); !errors.Is(err, context.Canceled) || b.Difference != 1 {
		t.Errorf("nobody waits for it: %+v, %v", b, err)
	}
}
