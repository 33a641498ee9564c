package retry

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// Schedules that were due while the storage was full. The server never fires them by itself.
func TestRetryStream_stuckSchedulesFireOnceTheyAreFound(t *testing.T) {
	js := natstest.Start(t, natstest.WithConfig("jetstream {max_file_store: 4MB}")).JetStream(t)
	r, err := OpenStream(t.Context(), js, "relay", "RELAY_RETRY", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FILL", Subjects: []string{"fill"}}); err != nil {
		t.Fatal(err)
	}
	const n = 300                          // more than a page
	due := time.Now().Add(6 * time.Second) // a busy machine takes seconds to park all and to fill the storage
	for seq := range uint64(n) {
		at := due
		if seq >= n-50 {
			at = due.Add(time.Hour) // these wait on
		}
		o := originOf(seq + 1)
		o.Subject = fmt.Sprintf("orders.%d", seq)
		if err := r.Park(t.Context(), o, nil, []byte("the body"), at, Room{Messages: 1000}, 0); err != nil {
			t.Fatal(err)
		}
	}
	filled := false
	for size := 100 << 10; size > 0; {
		if _, err := js.Publish(t.Context(), "fill", make([]byte, size)); err != nil {
			filled, size = true, size/2
		}
	}
	if !filled || time.Now().After(due) {
		t.Fatal("the storage is not full in time")
	}
	time.Sleep(time.Until(due.Add(time.Second))) // the server's clock
	if err := js.DeleteStream(t.Context(), "FILL"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if parked := messages(t, js, "relay.park.>"); parked != n {
		t.Fatalf("%d are parked, and %d due: the server does fire them now, and Unstick may go", parked, messages(t, js, "relay.due.>"))
	}
	freed, err := r.unstick(t.Context(), time.Now().Add(-time.Second))
	if err != nil || freed != n-50 {
		t.Fatalf("%d freed, %v", freed, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for messages(t, js, "relay.due.>") < n-50 {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d came due", messages(t, js, "relay.due.>"), n-50)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if parked := messages(t, js, "relay.park.>"); parked != 50 {
		t.Errorf("%d are parked, want the 50 that are not due", parked)
	}
	// They bring everything with them, and come once.
	c, err := js.CreateConsumer(t.Context(), r.Name(), jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: r.DueSubjects("billing", "ORDERS"),
	})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for m := range batch.Messages() {
		o, _, err := Unwrap(m.Headers())
		if err != nil || string(m.Data()) != "the body" || o.Attempts != 3 || o.Subject != fmt.Sprintf("orders.%d", o.Sequence-1) {
			t.Fatalf("%v: %+v", err, o)
		}
		if seen[o.Sequence] {
			t.Errorf("sequence %d came twice", o.Sequence)
		}
		seen[o.Sequence] = true
	}
	if len(seen) != n-50 {
		t.Errorf("%d came, want %d", len(seen), n-50)
	}
	// Nothing is stuck any more, and what waits is left alone.
	if freed, err := r.Unstick(t.Context()); freed != 0 || err != nil {
		t.Errorf("%d freed, %v", freed, err)
	}
}

// A schedule that fired after it was read is not published again.
func TestRetryStream_whatFiredMeanwhileIsNotRepeated(t *testing.T) {
	r, js := retryStream(t)
	if err := r.Park(t.Context(), originOf(7), nil, nil, time.Now().Add(300*time.Millisecond), Room{Messages: 10}, 0); err != nil {
		t.Fatal(err)
	}
	page, _, err := r.readFrom(t.Context(), "relay.park.>", 1)
	if err != nil || len(page) != 1 {
		t.Fatalf("%d parked, %v", len(page), err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for messages(t, js, "relay.due.>") == 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if again, err := r.again(t.Context(), page[0]); again || err != nil {
		t.Errorf("published again: %v, %v", again, err)
	}
	time.Sleep(500 * time.Millisecond)
	if n := messages(t, js, "relay.due.>"); n != 1 {
		t.Errorf("%d are due", n)
	}
}
