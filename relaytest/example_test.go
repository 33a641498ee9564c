package relaytest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/relaytest"
)

// A handler is tested without a server, and a route on one of the test's own. In a test, t is the test's.
func Example() {
	test := func(t *testing.T) {
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
	ok := testing.RunTests(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "TestBilling", F: test}})
	fmt.Println(ok)
	// Output: true
}
