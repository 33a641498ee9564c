// Command kind is relay with one more kind of handler: print, which writes each message to standard output. Everything that
// relay does, it does too, from run to dlq.
package main

import (
	"context"
	"fmt"

	"github.com/relaymq/relay/cmd/relay/program"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

func main() { program.Main(kind) }

var kind = handler.Define(handler.Definition[config]{
	Name: "print",
	Docs: map[string]handler.Doc{
		"":       {Text: "writes every message to standard output"},
		"prefix": {Text: "what stands before each"},
	},
	Build: func(c config, _ handler.Env, rt *consumer.Route) error {
		rt.Handler = consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			_, err := fmt.Printf("%s%s %s\n", c.Prefix, m.Subject, m.Data)
			return err
		})
		return nil
	},
})

// config is what stands under handler: {print: …}.
type config struct {
	Prefix string `koanf:"prefix"`
}

func (c config) WithDefaults() config {
	if c.Prefix == "" {
		c.Prefix = "> "
	}
	return c
}

func (config) Validate() error { return nil }
