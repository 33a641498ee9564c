package generations

import (
	"context"
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
	if err := f.Wait(t.Context(), w.js); err == nil || time.Since(began) < waitForFormers { // beside busy processes its last question may be without an answer
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

// silentOn is a server that does not answer about one stream.
type silentOn struct {
	jetstream.JetStream
	stream string
}

func (s silentOn) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if name == s.stream {
		return nil, context.DeadlineExceeded
	}
	return s.JetStream.Stream(ctx, name)
}

// The first of two generations is through, and the server does not answer about the second. That was taken for the answer that both are: on a busy server,
// after several changes of the number in a moment, later messages of a key overtook earlier ones.
func TestFormers_regressionNoAnswerIsNotThatAllAreThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gone := partition.Generation{Service: "relay", Route: "billing", Number: 2, Layout: partition.Layout{Count: 1, Key: "{2}", Subjects: []string{"orders.*.>"}, Stream: "ORDERS", Durable: "billing"}}
	busy := gone
	busy.Number = 3
	_, err := busy.Make(t.Context(), w.js, partition.Start{Sequence: 1}, 1)
	w.do(err)
	f := NewFormers(&Part{Between: []partition.Generation{gone, busy}})
	if err := f.Wait(t.Context(), silentOn{w.js, busy.Name()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answered: %v", err)
	}
	if err := f.Wait(t.Context(), w.js); err == nil { // beside busy processes its last question may be without an answer, so the error is not always the same
		t.Error("the second one is not through")
	}
}

// slowly is a server that is asked about so many streams before it does not answer any more.
type slowly struct {
	jetstream.JetStream
	left int
}

func (s *slowly) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if s.left--; s.left < 0 {
		return nil, context.DeadlineExceeded
	}
	return s.JetStream.Stream(ctx, name)
}

// A busy server answers about one generation in the time of a message. What it has said is not asked again: otherwise a message would wait for ever behind
// several generations.
func TestFormers_aBusyServerIsAskedOnceForEach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var gone []partition.Generation
	for n := range 3 {
		gone = append(gone, partition.Generation{Service: "relay", Route: "billing", Number: n + 1, Layout: partition.Layout{Count: 1}})
	}
	f := NewFormers(&Part{Between: gone})
	for n := range gone {
		err := f.Wait(t.Context(), &slowly{JetStream: w.js, left: 1})
		if last := n == len(gone)-1; last != (err == nil) {
			t.Errorf("after %d answers: %v", n+1, err)
		}
	}
}
