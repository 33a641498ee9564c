// Command embedded runs relay inside a program of your own, with a Go function as the handler. It needs a nats-server with
// JetStream on 127.0.0.1:4222 (nats-server -js) and a stream that holds orders.>.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	nc, err := nats.Connect(nats.DefaultURL, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	r, err := consumer.New(nc, consumer.Config{}, consumer.Route{
		Name:     "printer",
		Subjects: []string{"orders.>"},
		Start:    consumer.Start{Policy: "all"},
		Handler: consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			fmt.Printf("%s, attempt %d: %s\n", m.Subject, m.Attempt, m.Data)
			return nil
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
