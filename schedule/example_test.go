package schedule_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/schedule"
)

// A reminder in three days, which is taken back when the customer pays before.
func ExampleLater_Delay() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx, later := context.Background(), schedule.AttachLater(js, "relay")
	reminder := &nats.Msg{Subject: "orders.reminder", Data: []byte(`{"order": 7}`)}
	if _, err := later.Delay(ctx, "order-7", reminder, time.Now().Add(72*time.Hour)); err != nil {
		log.Fatal(err)
	}
	n, err := later.Remove(ctx, "order-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d taken back\n", n)
}
