package removal

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// A parked message that fired while it was moved ended `relay orphans move` with an error: that it was gone was not recognized.
func TestDelete_regressionAMessageThatIsGoneIsNoError(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(natstest.Start(t).Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	stream := func(name string, denied bool) jetstream.Stream {
		s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, DenyDelete: denied})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
		return s
	}
	open, denied := stream("OPEN", false), stream("DENIED", true)
	for range 2 {
		if err := Delete(t.Context(), open, 1); err != nil {
			t.Error(err)
		}
	}
	if err := Delete(t.Context(), denied, 1); err == nil {
		t.Error("a message that stays is said to be removed")
	}
}
