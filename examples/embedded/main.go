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

type Order struct{ ID, Cents int }

func charge(_ context.Context, o Order, m *consumer.Msg) error {
	if o.Cents <= 0 {
		return consumer.Dead(fmt.Errorf("order %d costs nothing", o.ID)) // any other error is tried again
	}
	fmt.Printf("order %d: %d cents, attempt %d\n", o.ID, o.Cents, m.Attempt)
	return nil
}

func logged(next consumer.Handler) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, m *consumer.Msg) error {
		err := next.Handle(ctx, m)
		log.Println(m.Subject, consumer.VerdictOf(err).Kind, err)
		return err
	})
}

var billing = consumer.Route{
	Name: "billing", Subjects: []string{"orders.>"}, Start: consumer.StartAll,
	Handler: consumer.JSON(charge), Use: []consumer.Middleware{logged},
}

func run(ctx context.Context, nc *nats.Conn) error {
	r, err := consumer.New(nc, consumer.Config{}, billing)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	nc, err := nats.Connect(nats.DefaultURL, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	if err := run(ctx, nc); err != nil {
		log.Fatal(err)
	}
}
