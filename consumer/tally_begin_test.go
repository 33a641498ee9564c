package consumer

import (
	"testing"

	"github.com/relaymq/relay/consumer/internal/engine"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/audit"
)

// onlyUnit is the unit of a relay that runs.
func (w *world) onlyUnit(r *Relay) (u *engine.Unit) {
	w.t.Helper()
	w.eventually("its unit runs", func() bool {
		units := r.engine.Running.Units()
		if len(units) > 0 {
			u = units[0]
		}
		return u != nil
	})
	return u
}

// openMain is the main source that is open now.
func openMain(u *engine.Unit) *source.Source {
	for _, s := range u.Open() {
		if !s.Due {
			return s
		}
	}
	return nil
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// parks publishes n messages that are parked, and waits until they are.
func (w *world) parks(n int) {
	w.t.Helper()
	w.publish("orders.park", n)
	w.settled("ORDERS", "billing")
}

// A durable is made anew while messages are parked: the new ledger knows of them.
func TestLedger_regressionParkedMessagesOfADurableMadeAnew(t *testing.T) {
	t.Parallel()
	route := everyEnd(func() bool { return false })
	route.Start = Start{Policy: "new"}
	for name, again := range map[string]func(w *world, r *Relay, stop func() error) func() error{
		"while nothing runs": func(w *world, _ *Relay, stop func() error) func() error {
			w.do(stop())
			w.do(w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing"))
			_, stop = w.start(Config{Instance: "b", Logger: quiet}, route)
			return stop
		},
		"while it runs": func(w *world, r *Relay, stop func() error) func() error {
			u, config := w.onlyUnit(r), w.info("ORDERS", "billing").Config
			old := openMain(u)
			w.do(w.js.DeleteConsumer(w.t.Context(), "ORDERS", "billing"))
			st, err := w.js.Stream(w.t.Context(), "ORDERS")
			w.do(err)
			w.do(st.Purge(w.t.Context()))
			_, err = w.js.CreateConsumer(w.t.Context(), "ORDERS", config)
			w.do(err)
			w.eventually("another source took over", func() bool { return openMain(u) != old })
			w.do(u.Tally.Write(w.t.Context()))
			return stop
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r, stop := w.start(Config{Instance: "a", Logger: quiet}, route)
			w.parks(5)
			w.do(w.onlyUnit(r).Tally.Write(t.Context())) // the old durable has a ledger
			stop = again(w, r, stop)
			w.publish("orders.ok", 3)
			w.eventually("these are through too", func() bool {
				i := w.info("ORDERS", "billing")
				return i.Delivered.Consumer >= 3 && i.NumPending+uint64(i.NumAckPending) == 0
			})
			w.do(stop())
			if b := w.audit(0); b.Verdict != audit.Balanced || b.Carried != 5 || b.Parked != 5 || b.Total.Received < 3 || b.Uncounted != 0 {
				t.Errorf("%+v", b)
			}
		})
	}
}

// The server does not answer soon enough for the ledger to begin before the first message. Those that came meanwhile count once.
func TestLedger_regressionABeginningThatIsLateCountsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := audit.Open(t.Context(), w.js, "relay", 1)
	w.do(err)
	kv, err := w.js.KeyValue(t.Context(), audit.Bucket("relay"))
	w.do(err)
	_, err = kv.Put(t.Context(), "ORDERS.billing", []byte(`{"format":99}`)) // which the instance leaves alone
	w.do(err)
	route := everyEnd(func() bool { return true })
	r, stop := w.start(Config{Instance: "a", Logger: quiet}, route)
	w.publish("orders.dead", 4)
	w.publish("orders.wait", 2)
	w.publish("orders.park", 5)
	w.eventually("all but those that wait are through", func() bool {
		i := w.info("ORDERS", "billing")
		return i.NumPending == 0 && i.NumAckPending == 2
	})
	w.do(kv.Purge(t.Context(), "ORDERS.billing"))
	w.do(w.onlyUnit(r).Tally.Write(t.Context()))
	w.publish("orders.park", 1)
	w.eventually("it is parked", func() bool {
		i := w.info("ORDERS", "billing")
		return i.Delivered.Consumer >= 12 && i.NumAckPending == 2
	})
	w.do(stop())
	want := audit.Counts{Received: 1}
	if b := w.audit(0); b.Verdict != audit.Balanced || b.Carried != 7 || b.Parked != 6 || b.Outstanding != 2 || b.Total != want || b.Uncounted != 0 || b.Whole {
		t.Errorf("%+v", b)
	}
}
