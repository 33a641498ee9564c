package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/dlq"
)

// The dead letters of a route that failed for one reason go back to it, and those that no one can mend go away.
func ExampleStore_Replay() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	store, err := dlq.Attach(ctx, js, "relay")
	if errors.Is(err, dlq.ErrNoStream) {
		fmt.Println("no dead letters yet")
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	for e, err := range store.List(ctx, dlq.Filter{Route: "billing"}) {
		switch {
		case errors.As(err, new(*dlq.EntryError)):
			continue // it cannot be read, and stays
		case err != nil:
			log.Fatal(err)
		case e.Reason == dlq.Rejected:
			err = store.Discard(ctx, e.StoredSequence)
		case strings.Contains(e.LastError, "connection refused"):
			err = store.Replay(ctx, e)
		}
		if err != nil && !errors.Is(err, dlq.ErrNotFound) {
			log.Fatal(err)
		}
	}
}
