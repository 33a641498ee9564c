// Package discard is the handler that acknowledges everything and does nothing: for tests, benchmarks and subjects that
// nobody wants.
package discard

import (
	"context"

	"github.com/relaymq/relay/consumer"
)

// New returns the handler. It has no state and may be shared.
func New() consumer.Handler { return handler{} }

type handler struct{}

var _ consumer.Outside = handler{}

// Handle does nothing.
func (handler) Handle(context.Context, *consumer.Msg) error { return nil }

// OutOfProcess says that no message can harm the process here.
func (handler) OutOfProcess() {}
