// Package discard is the handler that acknowledges everything and does nothing: for tests, benchmarks and subjects that
// nobody wants.
package discard

import (
	"context"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// Kind is handler: discard in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "discard",
	Docs: map[string]handler.Doc{"": {Text: "acknowledges everything; also written as a word: handler: discard"}},
	Build: func(_ Config, _ handler.Env, rt *consumer.Route) error {
		rt.Handler = New()
		return nil
	},
})

// Config is empty: there is nothing to say.
type Config struct{}

// WithDefaults returns c.
func (c Config) WithDefaults() Config { return c }

// Validate finds nothing.
func (Config) Validate() error { return nil }

// New returns the handler. It has no state and may be shared.
func New() consumer.Handler { return acker{} }

type acker struct{}

var _ consumer.Outside = acker{}

// Handle does nothing.
func (acker) Handle(context.Context, *consumer.Msg) error { return nil }

// OutOfProcess says that no message can harm the process here.
func (acker) OutOfProcess() {}
