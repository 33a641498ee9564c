package ack_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// The example does what it says: each message is settled, and one that failed comes again.
func TestPull_ofTheExample(t *testing.T) {
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	durable, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2", "3"} {
		if _, err := js.Publish(t.Context(), "orders."+id, nil); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	err = Pull(t.Context(), srv.Conn(t), "ORDERS", "billing", 3, func(m *nats.Msg) error {
		if got = append(got, m.Subject); len(got) == 2 {
			return errors.New("refused")
		}
		return nil
	})
	info, infoErr := durable.Info(t.Context())
	if err = errors.Join(err, infoErr); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []string{"orders.1", "orders.2", "orders.3", "orders.2"}) || info.NumAckPending != 0 || info.NumPending != 0 || info.AckFloor.Stream != 3 {
		t.Errorf("handled %v; %d outstanding, %d pending, ack floor %d", got, info.NumAckPending, info.NumPending, info.AckFloor.Stream)
	}
}
