package durables

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// An answer says which durable and stream it is of: one that was made again is another one.
func TestAsker(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	seen := 0
	a := Asker{JS: js, Stream: "ORDERS", Durable: "billing", Timeout: 5 * time.Second, Saw: func(*jetstream.ConsumerInfo) { seen++ }}
	if _, err := a.Ask(t.Context()); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Error(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.AskOn(t.Context(), stream); !errors.Is(err, jetstream.ErrConsumerNotFound) || seen != 0 {
		t.Error(err, seen)
	}
	ask := func() Answer {
		t.Helper()
		if _, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
		said, err := a.Ask(t.Context())
		if err != nil || said.Info.Name != "billing" || said.Stream.CachedInfo().Config.Name != "ORDERS" {
			t.Fatalf("%+v, %v", said, err)
		}
		return said
	}
	first := ask()
	if again := ask(); !again.Identity.Equal(first.Identity) || seen != 2 {
		t.Errorf("%+v and %+v, seen %d times", first.Identity, again.Identity, seen)
	}
	if err := stream.DeleteConsumer(t.Context(), "billing"); err != nil {
		t.Fatal(err)
	}
	if again := ask(); again.Identity.Equal(first.Identity) {
		t.Error("one that was made again is the same")
	}
}
