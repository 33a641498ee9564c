// Package discard is the handler that acknowledges everything and does nothing: for tests, benchmarks and subjects that
// nobody wants.
package discard

import (
	"context"

	"github.com/relaymq/relay/consumer"
)

// New returns the handler. It has no state and may be shared.
func New() consumer.Handler {
	return consumer.HandlerFunc(func(context.Context, *consumer.Msg) error { return nil })
}
