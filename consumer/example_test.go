package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/supervisor"
)

// A message that fails once is handled at its second attempt.
func Example() {
	nc, stop := serve()
	defer stop()
	js, _ := jetstream.New(nc)
	_, _ = js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	_, _ = js.Publish(context.Background(), "orders.eu.created", []byte(`{"id":1}`))

	ctx, done := context.WithTimeout(context.Background(), 30*time.Second)
	defer done()
	r, err := consumer.New(nc, consumer.Config{}, consumer.Route{
		Name:     "billing",
		Subjects: []string{"orders.*.created"},
		Start:    consumer.Start{Policy: "all"},
		Retry:    consumer.Retry{Backoff: supervisor.Backoff{Min: 100 * time.Millisecond}},
		Handler: consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			fmt.Printf("%s, attempt %d: %s\n", m.Subject, m.Attempt, m.Data)
			if m.Attempt == 1 {
				return errors.New("not yet")
			}
			done() // one message is enough here
			return nil
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("drained:", r.Run(ctx))
	// Output:
	// orders.eu.created, attempt 1: {"id":1}
	// orders.eu.created, attempt 2: {"id":1}
	// drained: <nil>
}

// serve starts a server of its own for the example.
func serve() (*nats.Conn, func()) {
	dir, _ := os.MkdirTemp("", "relay-example")
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: dir, DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		panic(err)
	}
	s.Start()
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.ReconnectBufSize(-1))
	if err != nil {
		panic(err)
	}
	return nc, func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
}
