package http

import (
	"net/url"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// Kind is handler: {http: {…}} in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "http",
	Docs: map[string]handler.Doc{
		"":                         {Text: "a request to an endpoint"},
		"url":                      {Text: "the endpoint; may hold user:password@"},
		"method":                   {Text: "method of the request", Values: []string{"POST", "PUT", "PATCH"}},
		"headers":                  {Text: "sent with every request, each a text or {file: path}; shown nowhere"},
		"forward_headers":          {Text: "names of message headers to copy, or beginnings such as ce-*; Content-Type too is only copied when named"},
		"ack":                      {Text: "statuses of success, numbers and ranges"},
		"dead":                     {Text: "statuses that mean never; none: no status"},
		"connect_timeout":          {Text: "name resolution and connect, and again the TLS handshake"},
		"response_header_timeout":  {Text: "wait for the response headers; 0s: up to the route's timeout"},
		"tls":                      {Text: "of an https endpoint, PEM files"},
		"tls.ca":                   {Text: "the only authorities to trust; empty: the system's"},
		"tls.cert":                 {Text: "certificate of this client; with key"},
		"tls.key":                  {Text: "its key"},
		"tls.insecure_skip_verify": {Text: "accept any certificate: whoever can redirect the connection reads the messages"},
	},
	Build: func(c Config, _ handler.Env, rt *consumer.Route) (err error) {
		rt.Handler, err = New(c, rt.Concurrency)
		return err
	},
	Describe: func(c Config) string { return safeURL(c.URL) },
	Lint: func(c Config, r handler.Report) {
		switch {
		case c.TLS.InsecureSkipVerify:
			r.Warn("tls.insecure_skip_verify", "any certificate is accepted: whoever can redirect the connection reads the messages")
		case c.TLS.Key != "":
			r.SecretFile("tls.key", c.TLS.Key)
		}
	},
})

// safeURL is scheme and host: for many endpoints the rest is what permits to call them.
func safeURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}
