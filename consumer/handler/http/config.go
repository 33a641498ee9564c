package http

import (
	"cmp"
	"errors"
	"fmt"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
)

// Config is the http handler of a route. The zero value of a field is its default; only URL is required.
type Config struct {
	// URL is where every message goes, as it stands: no part of it is made from a message. It may hold user info (sent
	// as basic authentication) and a query; neither is ever shown in an error.
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
	// Dead lists the statuses that say the message can never be handled. Empty means "400,410,413,414,415,422,431";
	// "none" is an empty list. A status of the default list that Ack names too is an ack.
	Dead string `koanf:"dead"`
	// ConnectTimeout bounds name resolution with the TCP connect, and again the TLS handshake. Zero means 5s.
	ConnectTimeout time.Duration `koanf:"connect_timeout"`
	// HeaderTimeout bounds the wait for the response headers after the request was written. Zero leaves it to the
	// route's timeout.
	HeaderTimeout time.Duration `koanf:"response_header_timeout"`
	// TLS is for https only.
	TLS TLS `koanf:"tls"`
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
	defaultDead = "400,410,413,414,415,422,431"
)

// WithDefaults fills the fields that say nothing.
func (c Config) WithDefaults() Config {
	c.Method = cmp.Or(c.Method, "POST")
	c.Ack = cmp.Or(c.Ack, defaultAck)
	c.Dead = cmp.Or(c.Dead, defaultDead)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	return c
}

// Validate returns every fault, each beginning with the config name of its field. It reads no files. What may be a
// secret (the URL, header values) is not repeated.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	u, err := parseURL(c.URL)
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
		case !validValue(c.Headers[name]):
			fault("headers: the value of %s holds a control byte", name)
		}
	}
	for i, entry := range c.ForwardHeaders {
		name, isPrefix := headerlist.Split(entry)
		switch {
		case !validName(name) && !(isPrefix && name == ""):
			fault("forward_headers[%d]: %q is not a header name, nor the beginning of one with * at its end", i, entry)
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
		fault("dead: %d is in ack too", both[0])
	}
	if c.ConnectTimeout < 0 {
		fault("connect_timeout: must be above 0 (got %v)", c.ConnectTimeout)
	}
	if c.HeaderTimeout < 0 {
		fault("response_header_timeout: must not be negative (got %v)", c.HeaderTimeout)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		fault("tls: cert and key go together")
	}
	if c.TLS != (TLS{}) && u != nil && u.Scheme != "https" {
		fault("tls: the url is not https")
	}
	return errors.Join(errs...)
}

// parseURL says what is wrong with a URL without repeating any of it: net/url quotes the part that it cannot parse, which
// may be half a password.
func parseURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, errors.New("is required")
	}
	u, err := url.Parse(s)
	switch {
	case err != nil && !strings.Contains(s, "://"): // 127.0.0.1:8080 is no scheme
		return nil, errors.New("must begin with http:// or https://")
	case err != nil:
		return nil, errors.New("is not a URL (special characters in user info must be percent-encoded)")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.Fragment != "":
		return nil, errors.New("has a fragment, which is never sent")
	case strings.ContainsAny(u.Host+u.Path+u.RawQuery, "{}"):
		return nil, errors.New("holds { or }: placeholders are not expanded here (write %7B and %7D for the characters)")
	}
	return u, nil
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
