package generations

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/planned"
)

// What is planned is what Next does then.
func TestMaker_Planned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(3)
	want := func(wanted Wanted, made *jetstream.StreamConfig, want planned.Divided) {
		t.Helper()
		want.Route = "billing"
		if got, err := w.maker.Planned(t.Context(), wanted, func(string) *jetstream.StreamConfig { return made }); err != nil || got != want {
			t.Errorf("%+v %v, want %+v", got, err, want)
		}
	}
	refused := func(wanted Wanted, made *jetstream.StreamConfig, part string) {
		t.Helper()
		if _, err := w.maker.Planned(t.Context(), wanted, func(string) *jetstream.StreamConfig { return made }); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want it to say %q", err, part)
		}
	}
	second := partition.Start{Sequence: 2}
	fromSecond, fresh := Start{Policy: "seq", Seq: 2}, Start{Policy: "new"}
	gone := wanted(2, fromSecond)
	gone.Stream = "GONE"
	queue := wanted(2, fromSecond)
	queue.Stream = "QUEUE"
	_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue.>"}, Retention: jetstream.WorkQueuePolicy})
	w.do(err)
	refused(wanted(2, Start{}), nil, "start: stream ORDERS already holds 3 messages")
	refused(gone, nil, "stream not found")
	refused(queue, nil, "partitions: stream QUEUE has retention WorkQueue")
	refused(gone, &jetstream.StreamConfig{Name: "GONE", Retention: jetstream.WorkQueuePolicy}, "partitions: stream GONE has retention WorkQueue")
	want(gone, &jetstream.StreamConfig{Name: "GONE"}, planned.Divided{Does: planned.Made, Stream: "RELAY_BILLING_G1", Partitions: 2, Start: partition.Start{Sequence: 1}.String()})
	want(wanted(2, fresh), nil, planned.Divided{Does: planned.Made, Stream: "RELAY_BILLING_G1", Partitions: 2, Start: partition.Start{Sequence: 4}.String()})
	want(wanted(2, fromSecond), nil, planned.Divided{Does: planned.Made, Stream: "RELAY_BILLING_G1", Partitions: 2, Start: second.String()})

	_, err = w.maker.Next(t.Context(), nil, wanted(2, fromSecond))
	w.do(err)
	want(wanted(2, fromSecond), nil, planned.Divided{Does: planned.Stays, Stream: "RELAY_BILLING_G1", Partitions: 2, Before: 2})
	want(wanted(4, fromSecond), nil, planned.Divided{Does: planned.Changed, Stream: "RELAY_BILLING_G2", Partitions: 4, Before: 2})
}
