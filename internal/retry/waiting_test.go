package retry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// What is hastened in the very moment in which it comes due fires once: neither twice nor never.
func TestRetryStream_hastenedOnceWhateverTheMoment(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	r, err := OpenStream(t.Context(), js, "relay", "RELAY_RETRY", 1)
	if err != nil {
		t.Fatal(err)
	}
	const n = 300
	at := time.Now()
	for i := range uint64(n) {
		o := Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: i + 1, Time: at, Subject: "orders.x", Attempts: 1}
		due := at.Add(time.Duration(rand.IntN(1500)) * time.Millisecond)
		if i%3 == 0 {
			due = at.Add(time.Hour)
		}
		if err := r.Park(t.Context(), o, nats.Header{"Trace": {"a"}}, fmt.Appendf(nil, "body %d", i), due, Room{Messages: 10 * n}, 0); err != nil {
			t.Fatal(err)
		}
	}
	hastened, fired := 0, 0
	for range 4 {
		err := r.ListParked(t.Context(), "billing", func(p Parked) bool {
			if p.Err != nil {
				t.Fatal(p.Err)
			}
			switch _, err := r.Hasten(t.Context(), p, time.Now()); {
			case err == nil:
				hastened++
			case errors.Is(err, ErrFired):
				fired++
			default:
				t.Fatal(err)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if hastened < n/3 {
		t.Errorf("%d hastened, %d fired before", hastened, fired)
	}
	c, err := js.CreateConsumer(t.Context(), "RELAY_RETRY", jetstream.ConsumerConfig{Durable: "billing", FilterSubject: "relay.due.billing.>", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]int{}
	for quiet := 0; quiet < 2; {
		batch, err := c.Fetch(n, jetstream.FetchMaxWait(700*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		quiet++
		for m := range batch.Messages() {
			quiet = 0
			o, h, err := Unwrap(m.Headers())
			if err != nil || o.Due.After(time.Now()) || h.Get("Trace") != "a" || string(m.Data()) != fmt.Sprintf("body %d", o.Sequence-1) {
				t.Fatalf("%+v, %v, %q: %v", o, h, m.Data(), err)
			}
			seen[o.Sequence]++
			if err := m.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for seq := range uint64(n) {
		if seen[seq+1] != 1 {
			t.Errorf("message %d came %d times", seq+1, seen[seq+1])
		}
	}
}

// One that is held and removed does not come any more.
func TestRetryStream_unparked(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	r, err := OpenStream(t.Context(), js, "relay", "RELAY_RETRY", 1)
	if err != nil {
		t.Fatal(err)
	}
	o := Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 7, Time: time.Now(), Subject: "orders.x", Attempts: 1}
	if err := r.Park(t.Context(), o, nil, nil, time.Now().Add(time.Minute), Room{Messages: 10}, 0); err != nil {
		t.Fatal(err)
	}
	err = r.ListParked(t.Context(), "", func(p Parked) bool {
		number, err := r.Hasten(t.Context(), p, time.Now().Add(time.Hour))
		if err == nil {
			_, again := r.Hasten(t.Context(), p, time.Now()) // by what was read before
			if !errors.Is(again, ErrFired) {
				t.Errorf("hastened by an old number: %v", again)
			}
			err = r.Unpark(t.Context(), number)
		}
		if err != nil {
			t.Error(err)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "RELAY_RETRY")
	if err != nil || s.CachedInfo().State.Msgs != 0 {
		t.Errorf("%d are left, %v", s.CachedInfo().State.Msgs, err)
	}
}

func TestListWaiting(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	if err := ListWaiting(t.Context(), js, "RELAY_ATTEMPTS", "", "", func(Waiting) bool { t.Error("something"); return true }); err != nil {
		t.Errorf("without a bucket: %v", err)
	}
	b, err := OpenBucket(t.Context(), js, "RELAY_ATTEMPTS", 1)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().UTC()
	for _, name := range []string{"billing", "ödd name"} {
		records := b.Records("ORDERS", name, at)
		for seq := range uint64(5) {
			if err := records.Put(t.Context(), seq+1, 1, Record{Attempts: int(seq) + 1, FirstFailure: at, LastFailure: at, Due: at, LastError: "no"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func(durable string, most int) (n int) {
		err := ListWaiting(t.Context(), js, "RELAY_ATTEMPTS", "", durable, func(w Waiting) bool {
			if n++; w.Err != nil || w.Stream != "ORDERS" || durable != "" && w.Durable != durable || w.Attempts != int(w.Sequence) || w.LastError != "no" {
				t.Errorf("%+v", w)
			}
			return n < most
		})
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if a, b, c := count("", 100), count("ödd name", 100), count("", 3); a != 10 || b != 5 || c != 3 {
		t.Errorf("%d, %d, %d; want 10, 5, 3", a, b, c)
	}
}
