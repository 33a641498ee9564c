package relaytest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/relaytest"
)

// A handler is tested without a server, and a route on one of the test's own.
func Example() {
	var t *testing.T // of the test
	testBilling(t)
}

func testBilling(t *testing.T) {
	handler := consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
		if len(m.Data) == 0 {
			return consumer.Dead(errors.New("an empty order"))
		}
		return nil
	})
	relaytest.Handle(t, handler, relaytest.Msg("orders.eu", "")).Want(consumer.VerdictDead)

	r := relaytest.Start(t, consumer.Config{}, consumer.Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: handler})
	r.Publish("orders.eu", "coffee").Want(relaytest.Done)
	r.Publish("orders.eu", "").Want(relaytest.DeadLettered)
}
