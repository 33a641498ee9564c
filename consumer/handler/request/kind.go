package request

import (
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// Kind is handler: {request: {…}} in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "request",
	Docs: map[string]handler.Doc{
		"":                {Text: "a request to a NATS service"},
		"subject":         {Text: "template: {1} is the first token of the message's subject, {subject} all of it"},
		"allow":           {Text: "patterns of the only subjects allowed; empty: all, unless subject begins with a placeholder, which needs it"},
		"headers":         {Text: "sent with every request, each a text or {file: path}; shown nowhere"},
		"forward_headers": {Text: "names of message headers to copy, or beginnings such as ce-*"},
		"ack":             {Text: "error codes of the service that are a success, numbers and ranges; none: no code"},
		"dead":            {Text: "error codes that dead-letter the message at once; none: no code"},
	},
	Build: func(c Config, env handler.Env, rt *consumer.Route) (err error) {
		rt.Handler, err = New(c, env.Conn, env.JetStream, env.Own...)
		return err
	},
	Describe: func(c Config) string { return "to " + c.Subject },
	Publishes: func(c Config) handler.Publishing {
		return handler.Publishing{Key: "subject", Template: c.Subject, Allow: c.Allow}
	},
})
