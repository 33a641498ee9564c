package generations

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
)

// What a part has still waits until the generations between it and the newest one are through: also for ever, for a second at a time. Once they are,
// nobody is asked any more.
func TestFormers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := NewFormers(nil).Wait(t.Context(), nil); err != nil {
		t.Error(err)
	}
	between := partition.Generation{Service: "relay", Route: "billing", Number: 2, Layout: partition.Layout{Count: 1, Key: "{2}", Subjects: []string{"orders.*.>"}, Stream: "ORDERS", Durable: "billing"}}
	stream, err := between.Make(t.Context(), w.js, partition.Start{Sequence: 1}, 1)
	w.do(err)
	w.do(between.Put(t.Context(), w.js, "orders.k1.paid", nats.Header{"Relay-Attempts": {"2"}, "Nats-Sequence": {"7"}}, []byte("x")))
	got, err := w.js.Stream(t.Context(), between.Name())
	w.do(err)
	last, err := got.GetLastMsgForSubject(t.Context(), between.Moved("orders.k1.paid"))
	w.do(err)
	if last.Header.Get("Relay-Attempts") != "2" || last.Header.Get("Nats-Sequence") != "" || string(last.Data) != "x" {
		t.Errorf("%v %q", last.Header, last.Data)
	}

	f := NewFormers(&Part{Between: []partition.Generation{between}})
	began := time.Now()
	if err := f.Wait(t.Context(), w.js); !errors.Is(err, errFormersFirst) || time.Since(began) < waitForFormers {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	w.do(w.js.DeleteStream(t.Context(), stream.Name()))
	for range 2 {
		if err := f.Wait(t.Context(), w.js); err != nil {
			t.Error(err)
		}
	}
	w.do(f.Wait(t.Context(), jetstream.JetStream(nil)))
}
