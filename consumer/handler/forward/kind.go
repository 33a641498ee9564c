package forward

import (
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// Kind is handler: {forward: {…}} in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "forward",
	Docs: map[string]handler.Doc{
		"":                {Text: "a copy to another subject, confirmed"},
		"subject":         {Text: "template: {1} is the first token of the message's subject, {subject} all of it"},
		"allow":           {Text: "patterns of the only subjects allowed; empty: all, unless subject begins with a placeholder, which needs it"},
		"forward_headers": {Text: "names of message headers to copy, or beginnings such as ce-*"},
	},
	Build: func(c Config, env handler.Env, rt *consumer.Route) (err error) {
		rt.Handler, err = New(c, env.JetStream, env.Own...)
		return err
	},
	Describe: func(c Config) string { return "to " + c.Subject },
	Publishes: func(c Config) handler.Publishing {
		return handler.Publishing{Key: "subject", Template: c.Subject, Allow: c.Allow, Stored: true}
	},
})
