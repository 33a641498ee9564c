package http

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// Kind is handler: {http: {…}} in a configuration.
var Kind = handler.Define(handler.Definition[Config]{
	Name: "http",
	Docs: map[string]handler.Doc{
		"":                          {Text: "a request to an endpoint"},
		"url":                       {Text: "the endpoint; may hold user:password@, and {1}, {2}, … for tokens of the subject: in the path and the query, in the host with hosts or egress.allow"},
		"method":                    {Text: "method of the request", Values: []string{"POST", "PUT", "PATCH"}},
		"headers":                   {Text: "sent with every request, each a text or {file: path}; shown nowhere"},
		"forward_headers":           {Text: "names of message headers to copy, or beginnings such as ce-*; Content-Type too is only copied when named"},
		"ack":                       {Text: "statuses of success, numbers and ranges"},
		"dead":                      {Text: "statuses that dead-letter the message at once; none: no status"},
		"gone":                      {Text: "what status 410 does when ack and dead do not list it: suspend the route, or dead", Values: []string{goneSuspend, goneDead}},
		"connect_timeout":           {Text: "name resolution and connect, and again the TLS handshake"},
		"response_header_timeout":   {Text: "wait for the response headers; 0s: up to the route's timeout"},
		"tls":                       {Text: "of an https endpoint, PEM files"},
		"tls.ca":                    {Text: "the only authorities to trust; empty: the system's"},
		"tls.cert":                  {Text: "certificate of this client; with key"},
		"tls.key":                   {Text: "its key"},
		"tls.insecure_skip_verify":  {Text: "accept any certificate: whoever can redirect the connection can read the messages"},
		"cloudevents":               {Text: "send CloudEvents 1.0 as events (pass), and make events of other messages, too (binary); attributes are headers", Values: []string{eventsOff, eventsPass, eventsBinary}},
		"event_type":                {Text: "for cloudevents binary: the type of an event that relay makes, such as com.example.{2}"},
		"event_source":              {Text: "for cloudevents binary: its source; empty: /nats/<stream>"},
		"hosts":                     {Text: "the only hosts that tokens in url may make; * stands for one label"},
		"egress":                    {Text: "addresses that relay may connect to, checked after resolution; never metadata services, link-local and the like"},
		"egress.deny":               {Text: "addresses and ranges that relay never connects to"},
		"egress.allow":              {Text: "the only ones that relay connects to; an entry within a range that is refused by default permits that part"},
		"proxy":                     {Text: "URL of a proxy (http, https, socks5), which replaces egress; empty: none, the environment is never read"},
		"auth":                      {Text: "credentials in the header Authorization: bearer or oauth2"},
		"auth.bearer":               {Text: "a token, or {file: path}, which is read again when it changes and after a 401"},
		"auth.oauth2":               {Text: "tokens by client credentials (RFC 6749, 4.4); a 401 renews one once"},
		"auth.oauth2.token_url":     {Text: "the token endpoint; while it gives no token, no attempt is spent and the route waits"},
		"auth.oauth2.client_id":     {Text: "id of relay at the token endpoint"},
		"auth.oauth2.client_secret": {Text: "text, or {file: path}, which is read for each token"},
		"auth.oauth2.scopes":        {Text: "scopes of the token"},
		"auth.oauth2.audience":      {Text: "audience of the token; empty: none is sent"},
		"sign":                      {Text: "sign requests by Standard Webhooks"},
		"sign.keys":                 {Text: "files with keys, one on a line; each key signs; read again when they change; see relay webhook keygen"},
		"sign.keys.file":            {Text: "whsec_… or whsk_… keys"},
	},
	Build: func(c Config, env handler.Env, rt *consumer.Route) (err error) {
		c.Own = env.Listeners
		rt.Handler, err = New(c, rt.Concurrency)
		return err
	},
	Describe: func(c Config) string { return safeURL(c.URL) },
	Lint: func(c Config, r handler.Report) {
		if c.TLS.InsecureSkipVerify {
			r.Warn("tls.insecure_skip_verify", "any certificate is accepted: whoever can redirect the connection can read the messages")
		}
		if c.TLS.CA != "" {
			r.File("tls.ca", c.TLS.CA)
		}
		if c.TLS.Cert != "" {
			r.File("tls.cert", c.TLS.Cert)
			r.SecretFile("tls.key", c.TLS.Key)
		}
		warnPlain(c, r)
		for i, k := range c.Sign.Keys {
			r.SecretFile(fmt.Sprintf("sign.keys[%d].file", i), k.File)
		}
	},
})

// warnPlain warns of secrets that everybody on the way could read.
func warnPlain(c Config, r handler.Report) {
	plain := func(s string) bool {
		t, err := parseTarget(s)
		if err != nil || t.scheme != "http" || t.hostChosen() {
			return err == nil && t.scheme == "http"
		}
		a, err := netip.ParseAddr(t.host[0].text)
		return t.host[0].text != "localhost" && (err != nil || !a.IsLoopback())
	}
	switch {
	case c.Auth.OAuth2.set() && plain(c.Auth.OAuth2.TokenURL):
		r.Warn("auth.oauth2.token_url", "is not https: others on the network can read the client secret")
	case (c.Auth.OAuth2.set() || c.Auth.Bearer.Reveal() != "") && plain(c.URL):
		r.Warn("url", "is not https: others on the network can read the token of auth")
	}
}

// safeURL is scheme and host: for many endpoints the rest is what permits to call them.
func safeURL(s string) string {
	t, err := parseTarget(s)
	if err != nil {
		return "(not a URL)"
	}
	var host strings.Builder
	for _, p := range t.host {
		if p.token > 0 {
			fmt.Fprintf(&host, "{%d}", p.token)
		}
		host.WriteString(p.text)
	}
	if strings.Contains(host.String(), ":") {
		return t.scheme + "://[" + host.String() + "]" + t.port
	}
	return t.scheme + "://" + host.String() + t.port
}
