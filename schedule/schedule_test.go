package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	inside "github.com/relaymq/relay/internal/schedule"
	"github.com/relaymq/relay/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// A program delays messages, looks at what waits, and takes it back, by the streams of a relay that runs.
func TestLater_delaysAndTakesBack(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	later := schedule.AttachLater(js, "")
	due := time.Now().Add(time.Hour).Truncate(time.Second)
	reminder := &nats.Msg{Subject: "orders.reminder", Data: []byte("order 7")}
	if _, err := later.Delay(t.Context(), "order-7", reminder, due); !errors.Is(err, schedule.ErrNoIntake) {
		t.Fatalf("no relay has run: %v", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // as relay run does
		defer close(done)
		inside.New(js, inside.Config{Service: "relay", Replicas: 1, Logger: slog.New(slog.DiscardHandler)}).Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	natstest.Eventually(t, "the streams of delayed messages are there", func() bool {
		_, err := later.Delay(t.Context(), "order-7", reminder, due)
		return err == nil
	})
	if _, err := later.Delay(t.Context(), "order-8", reminder, due); err != nil {
		t.Fatal(err)
	}
	list, more, err := later.List(t.Context(), 1)
	if err != nil || len(list) != 1 || !more {
		t.Errorf("one of two: %+v, %v, %v", list, more, err)
	}
	list, err = later.Find(t.Context(), "order-7")
	if err != nil || len(list) != 1 {
		t.Fatalf("found %+v, %v", list, err)
	}
	if d := list[0]; d.ID != "order-7" || d.Subject != "orders.reminder" || !d.Due.Equal(due) || d.Size != 7 || d.Stored.IsZero() || d.Overdue {
		t.Errorf("%+v", d)
	}
	if n, err := later.Remove(t.Context(), "order-7"); err != nil || n != 1 {
		t.Errorf("%d taken back, %v", n, err)
	}
	if list, err = later.Find(t.Context(), "order-7"); err != nil || len(list) != 0 {
		t.Errorf("it still waits: %+v, %v", list, err)
	}
}
