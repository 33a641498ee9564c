package http

import (
	"cmp"
	"errors"
	"fmt"
	nethttp "net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
)

// Config is the http handler of a route. The zero value of a field is its default; only URL is required.
type Config struct {
	// URL is where messages go. It may hold user info (sent as basic authentication) and a query; neither is ever shown in an
	// error. {1}, {2}, … stand for tokens of the subject and {subject} for all of it: in the path and the query, escaped, and
	// tokens also in labels of the host, when Hosts or Egress.Allow say what may come of that.
	URL string `koanf:"url"`
	// Method is POST (default), PUT or PATCH.
	Method string `koanf:"method"`
	// Headers are sent with every request. They win over forwarded ones, and over User-Agent and Content-Type, which is
	// application/octet-stream otherwise.
	Headers map[string]string `koanf:"headers"`
	// ForwardHeaders are the names of message headers to copy, in any case, and beginnings of names such as ce-*. None by
	// default. Content-Type is copied only when it is named here, and is a media type. A value that is no valid HTTP header
	// value, is longer than 8 KiB, or comes after 32 KiB of others, is left out.
	ForwardHeaders []string `koanf:"forward_headers"`
	// Ack lists the statuses that acknowledge the message, as numbers and ranges. Empty means "200-299".
	Ack string `koanf:"ack"`
	// Dead lists the statuses that say the message can never be handled. Empty means "400,413,414,415,422,431";
	// "none" is an empty list. A status of the default list that Ack names too is an ack. What 410 does, Gone says.
	Dead string `koanf:"dead"`
	// Gone is what 410 does that neither Ack nor Dead names: suspend the route, or dead. Empty means suspend, and dead where
	// messages have a part in the URL: what is gone is then a matter of the message.
	Gone string `koanf:"gone"`
	// ConnectTimeout bounds name resolution with the TCP connect, and again the TLS handshake. Zero means 5s.
	ConnectTimeout time.Duration `koanf:"connect_timeout"`
	// HeaderTimeout bounds the wait for the response headers after the request was written. Zero leaves it to the
	// route's timeout.
	HeaderTimeout time.Duration `koanf:"response_header_timeout"`
	// TLS is for https only.
	TLS TLS `koanf:"tls"`
	// CloudEvents is off (default: messages go as they are), pass (messages that are CloudEvents 1.0 go as such, and others as they
	// are), or binary (others are made events).
	CloudEvents string `koanf:"cloudevents"`
	// EventType is the type of events that are made, a template over tokens of the subject: com.example.{2}. Empty means {subject}.
	EventType string `koanf:"event_type"`
	// EventSource is their source, a URI reference. Empty means /nats/<stream>.
	EventSource string `koanf:"event_source"`
	// Hosts are the only hosts that placeholders may make; * stands for one label.
	Hosts []string `koanf:"hosts"`
	// Egress bounds what is connected to.
	Egress Egress `koanf:"egress"`
	// Proxy is the URL (http, https or socks5) of a proxy for all requests. It connects in relay's place, and what Egress refuses
	// by default is then for the proxy to refuse. Empty means none: the environment is never read.
	Proxy string `koanf:"proxy"`
	// Own returns addresses as host:port that are refused always, as relay's own listeners are. It may be nil.
	Own func() []string `koanf:"-"`
	// Auth adds the header Authorization.
	Auth Auth `koanf:"auth"`
	// Sign adds the headers of Standard Webhooks.
	Sign Sign `koanf:"sign"`
}

// suspendsGone tells whether 410, when neither ack nor dead names it, suspends the route.
func (c Config) suspendsGone(to *target) bool {
	return c.Gone != goneDead && to.fixed != nil
}

// Sign is with what requests are signed.
type Sign struct {
	// Keys sign each request, all of them; none means that requests are not signed.
	Keys []File `koanf:"keys"`
}

// File is something secret that stands in a file, which is read again while relay runs.
type File struct {
	File string `koanf:"file"`
}

// TLS is how an https endpoint is verified. The files are read when the handler is made.
type TLS struct {
	// CA is a PEM file of the only authorities to trust. Empty means the system's.
	CA string `koanf:"ca"`
	// Cert and Key are PEM files of the client's certificate: both or neither.
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
	// InsecureSkipVerify accepts any certificate: whoever can redirect the connection reads the messages.
	InsecureSkipVerify bool `koanf:"insecure_skip_verify"`
}

const (
	defaultAck  = "200-299"
	defaultDead = "400,413,414,415,422,431"

	goneSuspend = "suspend"
	goneDead    = "dead"
)

// WithDefaults fills the fields that say nothing.
func (c Config) WithDefaults() Config {
	c.Method = cmp.Or(c.Method, "POST")
	c.Ack = cmp.Or(c.Ack, defaultAck)
	c.Dead = cmp.Or(c.Dead, defaultDead)
	c.CloudEvents = cmp.Or(c.CloudEvents, eventsOff)
	c.EventType = cmp.Or(c.EventType, "{subject}")
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	return c
}

// Validate returns every fault, each beginning with the config name of its field. It reads no files. What may be a
// secret (the URL, header values) is not repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	to, err := parseTarget(c.URL)
	if err != nil {
		fault("url: %w", err)
	}
	if !slices.Contains([]string{"POST", "PUT", "PATCH"}, c.Method) {
		fault("method: must be POST, PUT or PATCH (got %q)", c.Method)
	}
	for _, name := range sortedKeys(c.Headers) {
		switch {
		case !validName(name):
			fault("headers: %q is not a header name", name)
		case ownHeader(name):
			fault("headers: %s is set by relay itself", name)
		case len(c.Sign.Keys) > 0 && hasPrefix(name, "webhook-"):
			fault("headers: %s is set by sign", name)
		case !validValue(c.Headers[name]):
			fault("headers: the value of %s holds a control byte", name)
		}
	}
	for i, entry := range c.ForwardHeaders {
		name, isPrefix := headerlist.Split(entry)
		switch {
		case !validName(name) && !(isPrefix && name == ""):
			fault("forward_headers[%d]: %q is not a header name, nor the beginning of a header name with * at its end", i, entry)
		case ownHeader(name) || neverForwarded(name):
			fault("forward_headers[%d]: %s may not be copied from a message", i, entry)
		}
	}
	ack, err := parseStatuses(c.Ack)
	switch {
	case err != nil:
		fault("ack: %w", err)
	case ack.empty():
		fault("ack: must name at least one status")
	}
	dead, err := parseStatuses(c.Dead)
	if err != nil {
		fault("dead: %w", err)
	}
	if both := ack.common(dead); len(both) > 0 && c.Dead != defaultDead {
		fault("dead: %d is also in ack: remove it from one of them", both[0])
	}
	switch {
	case c.Gone == "", c.Gone == goneDead:
	case c.Gone != goneSuspend:
		fault("gone: must be suspend or dead (got %q)", c.Gone)
	case ack.has(nethttp.StatusGone), dead.has(nethttp.StatusGone):
		fault("gone: 410 is already in ack or dead: leave gone out, or remove 410 there")
	case to != nil && to.fixed == nil:
		fault("gone: the url has placeholders, so that one message whose URL is gone would suspend the route: leave gone out, or set it to dead")
	}
	if c.ConnectTimeout < 0 {
		fault("connect_timeout: must be above 0 (got %v)", c.ConnectTimeout)
	}
	if c.HeaderTimeout < 0 {
		fault("response_header_timeout: must not be negative (got %v)", c.HeaderTimeout)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		fault("tls: cert and key belong together: set both or neither")
	}
	if c.TLS != (TLS{}) && to != nil && to.scheme != "https" {
		fault("tls: needs an https url")
	}
	errs = append(errs, c.whereTo(to)...)
	errs = append(errs, c.authFaults(to)...)
	errs = append(errs, c.eventFaults()...)
	for i, k := range c.Sign.Keys {
		if k.File == "" {
			fault("sign.keys[%d].file: is required", i)
		}
	}
	return errors.Join(errs...)
}

// whereTo returns what is wrong with hosts, egress and proxy. The target is nil when it could not be read.
func (c Config) whereTo(to *target) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, h := range c.Hosts {
		labels := strings.Split(strings.ToLower(h), ".")
		for j := range labels {
			if labels[j] == "*" {
				labels[j] = "x"
			}
		}
		if checkHost(strings.Join(labels, ".")) != nil {
			fault("hosts[%d]: must be a host name, in which * stands for a whole label (got %q)", i, h)
		}
	}
	strict := ofOperator
	switch {
	case to == nil:
	case to.hostChosen() && len(c.Hosts) == 0 && (len(c.Egress.Allow) == 0 || c.Proxy != ""):
		fault("url: a message chooses part of the host, so hosts must list the allowed hosts, such as [\"*.hooks.example.com\"]%s",
			map[bool]string{true: ", or egress.allow the allowed addresses"}[c.Proxy == ""])
	case to.hostChosen():
		strict = ofMessages
		if len(c.Hosts) > 0 && !slices.ContainsFunc(c.Hosts, to.mayBe) {
			fault("hosts: the url cannot produce any of these hosts, so every message would be dead-lettered")
		}
	case len(c.Hosts) > 0 && !slices.ContainsFunc(c.Hosts, func(h string) bool { return hostMatches(h, strings.ToLower(to.host[0].text)) }):
		fault("hosts: the host of the url is not in the list")
	}
	g, err := c.Egress.guard(strict, nil)
	if err != nil {
		fault("%w", err)
	}
	if c.Proxy == "" {
		return errs
	}
	if _, err := parseProxy(c.Proxy); err != nil {
		fault("proxy: %w", err)
	}
	if len(c.Egress.Deny)+len(c.Egress.Allow) > 0 {
		fault("egress: has no effect with a proxy, which opens the connections: leave egress out, and restrict the proxy")
	} else if g != nil && to != nil && !to.hostChosen() {
		if a, err := netip.ParseAddr(to.host[0].text); err == nil && g.judge(a) != nil {
			fault("url: %w", g.judge(a))
		}
	}
	return errs
}

// parseProxy repeats nothing of the URL, which may hold a password.
func parseProxy(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("must be a URL such as http://proxy.example.com:3128 (http, https or socks5)")
	}
	return u, nil
}

// hasPrefix compares without case.
func hasPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// ownHeader names the headers that frame the request or that relay sets from the message. One of them from elsewhere
// could smuggle a second request, or lie about the message.
func ownHeader(name string) bool {
	switch name = textproto.CanonicalMIMEHeaderKey(name); name {
	case "Host", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Connection", "Keep-Alive", "Upgrade", "Expect":
		return true
	}
	return strings.HasPrefix(name, "Relay-") || strings.HasPrefix(name, "Proxy-")
}

// neverForwarded names headers that an endpoint takes as the sender's word: a publisher must not speak in relay's name.
func neverForwarded(name string) bool {
	switch name = textproto.CanonicalMIMEHeaderKey(name); name {
	case "Authorization", "Cookie", "Forwarded", "User-Agent", "Accept-Encoding":
		return true
	}
	return strings.HasPrefix(name, "Webhook-") || strings.HasPrefix(name, "X-Forwarded-")
}
