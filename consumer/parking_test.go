package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/retry"
)

// flood is publish for many.
func (w *world) flood(subject string, n int) {
	w.t.Helper()
	for range n {
		if _, err := w.js.PublishAsync(subject, []byte("x"), jetstream.WithStallWait(time.Minute)); err != nil {
			w.t.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
}

// What the stash had no room for was NAKed, whatever its number. With MaxAckPending of them outstanding the server
// delivered nothing more, and one failing key stopped all others.
func TestRelay_regressionABacklogOfOneKeyDoesNotFillTheDurable(t *testing.T) {
	t.Parallel()
	for name, parkMax := range map[string]int{"parked": 0, "the retry stream is full": 10} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			const most, bad, good = 1500, 6_000, 100
			w.flood("orders.bad", bad)
			w.publish("orders.good", good)
			var handled, others atomic.Int64
			w.start(Config{Logger: quiet, calledBackFrom: most}, Route{
				Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Retry: Retry{ParkMax: parkMax},
				Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
					if m.Subject == "orders.bad" {
						others.Add(1)
						return errors.New("bad")
					}
					handled.Add(1)
					return nil
				}),
			})
			w.eventually("the others are handled", func() bool { return handled.Load() == good })
			w.eventually("the bad ones wait", func() bool {
				st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
				if err != nil {
					t.Fatal(err)
				}
				info := w.info("ORDERS", "billing")
				parked, left := int(st.CachedInfo().State.Msgs), int(info.NumPending)+info.NumAckPending
				stay := bad - 1 // relay looks at the retry stream once a second: some thousand may be parked before it is known to be full
				if parkMax == 0 {
					stay = most + 2000 // with the stash
				}
				return parked+left == bad && left <= stay // acks of what is parked come after it
			})
			st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
			if err != nil {
				t.Fatal(err)
			}
			m, err := st.GetMsg(t.Context(), st.CachedInfo().State.FirstSeq)
			if err != nil {
				t.Fatal(err)
			}
			o, header, err := retry.Unwrap(m.Header)
			due, _ := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Schedule")[len("@at "):])
			if err != nil || o.Attempts != 0 || o.Returns != 1 || o.Subject != "orders.bad" || len(header) > 0 || time.Until(due) < 5*time.Second {
				t.Errorf("parked as %+v (%v), due in %v", o, err, time.Until(due))
			}
			if n := others.Load(); n > 100 {
				t.Errorf("the bad key had %d starts", n)
			}
		})
	}
}

// A message that is parked unstarted has a delivery of its own afterwards, and must stay away for longer all the same.
func TestMessage_returnsAreCountedOverParking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, err := New(w.nc, Config{}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		origin     *retry.Origin
		record     retry.Record
		deliveries uint64
		want       int
	}{
		{nil, retry.Record{}, 1, 0},
		{nil, retry.Record{}, 3, 2},
		{nil, retry.Record{Attempts: 2}, 3, 0},
		{&retry.Origin{Returns: 3}, retry.Record{}, 1, 3},
		{&retry.Origin{Returns: 3, Attempts: 2}, retry.Record{}, 2, 4},
		{&retry.Origin{Returns: 3, Attempts: 2}, retry.Record{Attempts: 3}, 2, 3},
		{&retry.Origin{Returns: 3, Attempts: 2}, retry.Record{Solo: "e1"}, 1, 3}, // the record of a suspect has no attempts
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			attempts := c.record.Attempts
			if attempts > 0 {
				c.record.LastFailure = time.Now()
			} else if c.origin != nil {
				attempts = c.origin.Attempts
			}
			m := new(route.Message)
			m.Source, m.Route = new(source.Source), &r.engine.Routes.All()[0].Source
			m.Origin, m.Delivery = c.origin, &ack.Delivery{Msg: &nats.Msg{Subject: "orders.eu"}, Deliveries: c.deliveries}
			m.Enter(c.record)
			if m.Returns != c.want || m.Attempts != attempts {
				t.Errorf("%d returns and %d attempts, want %d and %d", m.Returns, m.Attempts, c.want, attempts)
			}
		})
	}
}

// Without the retry stream what waits stays in the durable, and the others go on.
func TestRelay_aBacklogWithoutTheRetryStreamDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	const most, bad, good = 1500, 6_000, 100
	w := newWorld(t)
	var handled atomic.Int64
	r, _ := w.start(Config{Logger: quiet, calledBackFrom: most}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if m.Subject == "orders.bad" {
				return errors.New("bad")
			}
			handled.Add(1)
			return nil
		}),
	})
	if err := w.js.DeleteStream(t.Context(), "RELAY_RETRY"); err != nil {
		t.Fatal(err)
	}
	w.flood("orders.bad", bad)
	w.publish("orders.good", good)
	w.eventually("the others are handled", func() bool { return handled.Load() == good })
	w.eventually("some tried to park", func() bool { return r.engine.Routes.All()[0].Path.Unparked() > 0 })
	if n := r.engine.Routes.All()[0].Path.Unparked(); n > 128 {
		t.Errorf("%d tried to park, want few", n)
	}
	w.eventually("all bad ones wait", func() bool {
		info := w.info("ORDERS", "billing")
		return int(info.NumPending)+info.NumAckPending == bad
	})
}

// A schedule fires by the server's clock. When that is ahead, the message waits for the rest as a NAK.
func TestRelay_aParkedMessageThatComesEarlyWaitsForTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var handled atomic.Int64
	w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(context.Context, *Msg) error { handled.Store(time.Now().UnixNano()); return nil }),
	})
	due := time.Now().Add(3 * time.Second)
	o := retry.Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 7, Time: time.Now(), Subject: "orders.eu", Attempts: 1, Due: due}
	if _, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: "relay.due.billing.ORDERS.x", Header: retry.Wrap(o, nil)}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is handled", func() bool { return handled.Load() > 0 })
	if at := time.Unix(0, handled.Load()); at.Before(due) {
		t.Errorf("handled %v before its time", due.Sub(at))
	}
}
