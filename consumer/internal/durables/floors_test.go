package durables

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
)

// noted has the retry stream with the durable of a route, on which the floor of another durable is noted.
func (w *world) noted(name string, floor uint64) *Floors {
	w.t.Helper()
	_, err := w.js.CreateOrUpdateStream(w.t.Context(), jetstream.StreamConfig{Name: "RELAY_RETRY", Subjects: []string{"relay.due.>"}})
	w.do(err)
	_, err = w.js.CreateOrUpdateConsumer(w.t.Context(), "RELAY_RETRY", jetstream.ConsumerConfig{
		Durable: retry.DueDurable(name, "JOBS"), AckPolicy: jetstream.AckExplicitPolicy, Metadata: map[string]string{"other": "stays"},
	})
	w.do(err)
	f := w.floors(name)
	f.Note(w.t.Context(), w.stream.CachedInfo().Created, floor)
	return f
}

// A floor is known after its durable has gone, of the same stream only.
func TestFloors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.LimitsPolicy, 10)
	made := w.stream.CachedInfo().Created
	alone := w.floors("billing")
	if alone.Note(t.Context(), made, 5); alone.Has(5) {
		t.Error("noted without a retry stream")
	}
	if _, known := alone.Before(t.Context(), made); known {
		t.Error("known without a retry stream")
	}
	f := w.noted("billing", 7)
	if !f.Has(7) || f.Has(8) {
		t.Error("it does not know what it noted")
	}
	if floor, known := alone.Before(t.Context(), made); !known || floor.Seq != 7 {
		t.Errorf("%v, %v", floor, known)
	}
	if f.Note(t.Context(), made, 0); !f.Has(7) {
		t.Error("a durable that settled nothing has a floor")
	}
	f.Note(t.Context(), made, 9)
	c, err := w.js.Consumer(t.Context(), "RELAY_RETRY", retry.DueDurable("billing", "JOBS"))
	w.do(err)
	if m := c.CachedInfo().Config.Metadata; m["other"] != "stays" || m["relay.floor"] == "" {
		t.Errorf("metadata %v", m)
	}
	if floor, _ := alone.Before(t.Context(), made); floor.Seq != 9 {
		t.Errorf("%v", floor)
	}
	if _, known := alone.Before(t.Context(), made.Add(time.Second)); known {
		t.Error("known of another stream of the name")
	}
	other := w.floors("billing")
	other.Durable = "renamed"
	if _, known := other.Before(t.Context(), made); known {
		t.Error("known of another durable")
	}
	if f.noted = time.Now().Add(-floorAgain); f.Has(9) {
		t.Error("it is noted for ever")
	}
	if err := w.js.DeleteStream(t.Context(), "RELAY_RETRY"); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatal(err)
	}
	if f.Note(t.Context(), made, 10); f.Has(10) {
		t.Error("noted although its durable is gone")
	}
}
