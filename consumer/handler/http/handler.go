// Package http is the handler that sends each message to a URL.
//
// # The request
//
// The body is the message's, byte for byte. Headers:
//
//	Relay-Id        the same for every attempt and replay; endpoints deduplicate by it
//	Relay-Attempt   1 for the first
//	Relay-Route     the route's name
//	Relay-Subject   the subject; bytes that are not printable ASCII, and %, are percent-encoded
//	Relay-Fence     with instances: one, a number that grows with each instance that gets the route
//	Relay-Deadline  when this attempt times out, RFC 3339 in UTC with milliseconds
//	Content-Type    application/octet-stream; the message's own when that is a media type and forward_headers names it
//	User-Agent      relay
//
// then the message headers that the config allows, then the config's own. Host, framing, hop-by-hop and Relay-* headers
// can come from neither, so that no message can smuggle a second request.
//
// With sign, these too, by the Standard Webhooks specification:
//
//	webhook-id         Relay-Id
//	webhook-timestamp  the seconds of this attempt
//	webhook-signature  one signature by each key, of id, timestamp and body
//
// and Authorization with auth; a 401 has the token renewed and the request sent once more. Without a token nothing is sent: that
// spends no attempt, and the route waits, with the token endpoint's answer as its reason.
//
// # The answer
//
// The status alone decides, by two tables of the config (ack, dead); every other status is a retry, 3xx too, since
// redirects are never followed. 410 suspends the route, with the answer as its reason (gone). 429 and 503 may name the pause in
// Retry-After. With any status, RateLimit headers say how many more requests the endpoint permits, see [consumer.Msg.Slow]. The reply
// must end, or pass 64 KiB, before an acknowledging status counts: a server that breaks off in the middle of its answer has not said
// that it is done. No more than those 64 KiB is read, unless a caller waits for the result, which is the body of an acknowledging answer: then as
// much as the route's caller.max_result. Nothing is decompressed, and the text of an error shows the first KiB.
//
// # Bounds
//
// The end of ctx is the time-out of the whole exchange; name resolution, connect and TLS have a shorter one. Response
// headers are bounded by 64 KiB. There are as many idle connections as the route has slots. Proxy variables of the
// environment are ignored.
//
// # Where it goes
//
// Each address is judged when it is about to be connected, see [Egress]. What a subject puts into a URL is escaped by its place;
// a subject of which no permitted URL can be made is dead.
//
// # This machine's own trouble
//
// When no connection could be made for want of descriptors, memory or ports, or because the name service had no answer for
// now, the endpoint was never asked, and the attempt was not started: it spends nothing.
//
// # Connections that the server closed
//
// A server may close an idle connection while a request is about to go out on it. When not one byte of the request was
// written, it is sent again on another connection, a few times; if that never helps, the attempt was not started. As soon
// as one byte was written nobody knows what the server did with it, and the error is a failed attempt like any other.
//
// # Secrets
//
// Errors name scheme and host of the URL only: user info, path and query may hold secrets.
package http

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	nethttp "net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/webhook"
)

const (
	maxReply       = 64 << 10
	maxReplyHeader = 64 << 10
	maxShown       = 1 << 10
	maxResends     = 3

	// idleTimeout is below the shortest keep-alive time-out in common use, the 5s of Node.js, so that relay drops a
	// connection before the server does.
	idleTimeout = 4 * time.Second
)

var userAgent = []string{"relay"}

// Handler sends messages to a URL. It may be shared by all keys of a route and called from any number of goroutines.
type Handler struct {
	cfg       Config
	request   nethttp.Request // what all have in common
	to        *target
	fixed     *endpoint // nil when it depends on the subject
	always    nethttp.Header
	forwarded headerlist.List
	typed     bool // Content-Type comes from the message
	ack, dead *statuses
	keys      *webhook.Keys // nil: requests are not signed
	auth      credential    // nil: none
	events    events
	direct    *direct // nil: all requests go through transport
	transport *nethttp.Transport
}

var (
	_ consumer.Handler = (*Handler)(nil)
	_ consumer.Checker = (*Handler)(nil)
	_ consumer.Outside = (*Handler)(nil)
	_ consumer.Stopper = (*Handler)(nil)

	_ consumer.BatchHandler = (*Handler)(nil)
)

// OutOfProcess says that the work is done in the process that answers.
func (*Handler) OutOfProcess() {}

// New returns the handler of a route that runs concurrency attempts at once. It reads the TLS files, and opens no
// connection. The error joins all faults of the config.
func New(cfg Config, concurrency int) (*Handler, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.TLS.load()
	if err != nil {
		return nil, err
	}
	keys, err := cfg.Sign.open()
	if err != nil {
		return nil, err
	}
	h := &Handler{cfg: cfg, keys: keys, always: nethttp.Header{}, forwarded: headerlist.New(cfg.ForwardHeaders)}
	h.typed = h.forwarded.Has("Content-Type")
	// Validate has parsed all of these.
	h.to, _ = parseTarget(cfg.URL)
	h.ack, _ = parseStatuses(cfg.Ack)
	h.dead, _ = parseStatuses(cfg.Dead)
	h.events = events{mode: cfg.CloudEvents, source: cfg.EventSource}
	h.events.typ, _ = subject.ParseTemplate(cfg.EventType)
	strict := ofOperator
	if h.to.hostChosen() && cfg.Proxy == "" { // a proxy is the operator's
		strict = ofMessages
	}
	guard, _ := cfg.Egress.guard(strict, cfg.Own)
	var proxy func(*nethttp.Request) (*url.URL, error) // nil: none, not even from the environment
	if cfg.Proxy != "" {
		u, _ := parseProxy(cfg.Proxy)
		proxy = nethttp.ProxyURL(u)
	}
	if user := h.to.user; user != nil {
		password, _ := user.Password()
		r := nethttp.Request{Header: h.always}
		r.SetBasicAuth(user.Username(), password)
	}
	if u := h.to.fixed; u != nil {
		h.fixed = new(h.named(u))
	}
	h.request = nethttp.Request{Method: cfg.Method, Body: nethttp.NoBody}
	for name, value := range cfg.Headers {
		h.always.Set(name, value)
	}
	concurrency = max(concurrency, 1)
	dial := dialer(cfg.ConnectTimeout, guard)
	h.direct = newDirect(cfg, h.to, concurrency, dial)
	h.transport = &nethttp.Transport{
		Proxy:                  proxy,
		DialContext:            dial,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: maxReplyHeader,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true, // a TLS config or a dialer of one's own turns it off
		MaxIdleConns:           concurrency,
		MaxIdleConnsPerHost:    concurrency,
		IdleConnTimeout:        idleTimeout,
		// One HTTP/2 connection carries all requests. Without pings one that went silent would fail every attempt until
		// TCP gives it up, a quarter of an hour later.
		HTTP2: &nethttp.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
	h.auth = newCredential(cfg, tokenTransport(cfg, tlsConfig, proxy))
	return h, nil
}

// tokenTransport is for the token endpoint: the same way out, but for what is about the endpoint of the messages alone.
func tokenTransport(cfg Config, tlsConfig *tls.Config, proxy func(*nethttp.Request) (*url.URL, error)) *nethttp.Transport {
	guard, _ := Egress{Deny: cfg.Egress.Deny}.guard(ofOperator, cfg.Own)
	tlsConfig = tlsConfig.Clone()
	tlsConfig.InsecureSkipVerify = false
	return &nethttp.Transport{
		Proxy: proxy, DialContext: dialer(cfg.ConnectTimeout, guard), TLSClientConfig: tlsConfig, TLSHandshakeTimeout: cfg.ConnectTimeout,
		MaxResponseHeaderBytes: maxReplyHeader, DisableCompression: true, ForceAttemptHTTP2: true, IdleConnTimeout: idleTimeout,
	}
}

// load reads the files. The error joins what is wrong with each.
func (t TLS) load() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.InsecureSkipVerify}
	var errs []error
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		cfg.RootCAs = x509.NewCertPool()
		if err != nil {
			errs = append(errs, fmt.Errorf("tls.ca: %w", err))
		} else if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			// An empty pool must not become "trust the system's".
			errs = append(errs, fmt.Errorf("tls.ca: %s holds no PEM certificate", t.CA))
		}
	}
	if t.Cert != "" {
		pair, err := t.pair()
		if err != nil {
			errs = append(errs, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, errors.Join(errs...)
}

// pair reads the client's certificate with its key. The error names both.
func (t TLS) pair() (pair tls.Certificate, err error) {
	cert, err := os.ReadFile(t.Cert)
	if err != nil {
		return pair, fmt.Errorf("tls.cert: %w", err)
	}
	key, err := os.ReadFile(t.Key)
	if err != nil {
		return pair, fmt.Errorf("tls.key: %w", err)
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		err = fmt.Errorf("tls.cert %q and tls.key %q: %w", t.Cert, t.Key, err)
	}
	return pair, err
}

// open reads the keys. It returns nil without any.
func (s Sign) open() (*webhook.Keys, error) {
	if len(s.Keys) == 0 {
		return nil, nil
	}
	paths := make([]string, len(s.Keys))
	for i, k := range s.Keys {
		paths[i] = k.File
		if _, err := webhook.OpenToSign(k.File); err != nil { // to name it
			return nil, fmt.Errorf("sign.keys[%d]: %w", i, err)
		}
	}
	return webhook.OpenToSign(paths...)
}

// Check reads the TLS files again. It does not connect: an endpoint that is down comes back.
func (h *Handler) Check(context.Context) error {
	_, err := h.cfg.TLS.load()
	return err
}

// Stop closes idle connections. The handler can be used again after it.
func (h *Handler) Stop(context.Context) error {
	h.transport.CloseIdleConnections()
	h.direct.closeIdle()
	if h.auth != nil {
		h.auth.stop()
	}
	return nil
}

// Handle sends m and returns the verdict of the endpoint's answer.
func (h *Handler) Handle(ctx context.Context, m *consumer.Msg) error {
	to, err := h.endpoint(m.Subject)
	if err != nil {
		return consumer.Dead(err)
	}
	header := h.header(m)
	token := ""
	if h.auth != nil {
		if token, err = h.auth.token(ctx, ""); err != nil {
			return err
		}
		header["Authorization"] = []string{"Bearer " + token}
	}
	reply, err := h.exchange(ctx, to, m.Data, header, token, m.MaxReply())
	if err != nil {
		return err
	}
	h.heed(to, &reply, m)
	m.Reply(reply.result)
	m.ReplyHeader("Content-Type", reply.resultType)
	return h.verdict(to, &reply)
}

// exchange sends a request until there is an answer, or none is to be expected. Token is what header has, if there is one. With
// most above 0, that much of an acknowledging answer is kept.
func (h *Handler) exchange(ctx context.Context, to endpoint, data []byte, header nethttp.Header, token string, most int) (reply, error) {
	renewed := false
	for resends := 0; ; resends++ {
		reply, at, err := h.send(ctx, to.url, data, header, most)
		if err == nil && reply.status == nethttp.StatusUnauthorized && h.auth != nil && !renewed {
			renewed = true
			other, err := h.auth.token(ctx, token)
			if err != nil {
				return reply, err
			}
			if other != token {
				token = other
				header = maps.Clone(header) // the former request may still be written
				header["Authorization"] = []string{"Bearer " + token}
				continue
			}
		}
		reply.body, reply.token = without(reply.body, token), token
		if err == nil {
			return reply, nil
		}
		err = &transportError{at: to.name + ": " + at.where(err), err: err}
		switch {
		case ctx.Err() != nil:
			return reply, err
		case at.phase == phaseConnect && ofThisMachine(err):
			return reply, consumer.NotStarted(err)
		case at.phase <= phaseTLS && !h.to.hostChosen():
			return reply, consumer.NoAnswer(err)
		case !at.untouched:
			return reply, err
		case resends == maxResends:
			return reply, consumer.NotStarted(err)
		}
	}
}

// endpoint is where a message goes.
type endpoint struct {
	url  *url.URL
	name string // for errors: method, scheme and host
}

// endpoint returns an error for a subject from which no URL can be made, or none that is permitted.
func (h *Handler) endpoint(subj string) (endpoint, error) {
	if h.fixed != nil {
		return *h.fixed, nil
	}
	u, err := h.to.expand(subj, h.cfg.Hosts)
	if err != nil {
		return endpoint{}, fmt.Errorf("%s: cannot make a URL for this subject: %w", h.cfg.Method, err)
	}
	return h.named(u), nil
}

func (h *Handler) named(u *url.URL) endpoint {
	return endpoint{u, h.cfg.Method + " " + u.Scheme + "://" + u.Host}
}

func (h *Handler) header(m *consumer.Msg) nethttp.Header {
	header := make(nethttp.Header, 8+len(h.always)+len(h.cfg.ForwardHeaders))
	forward(header, m.Header, h.forwarded)
	// One allocation for all values; Set makes one each. No value has room to be appended to.
	values := make([]string, 0, 11)
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	header["User-Agent"] = userAgent
	if h.typed {
		set("Content-Type", contentType(m.Header))
	} else {
		set("Content-Type", defaultType)
	}
	h.events.header(header, m)
	set("Relay-Id", escape(m.ID))
	set("Relay-Attempt", strconv.Itoa(m.Attempt))
	set("Relay-Route", escape(m.Route))
	set("Relay-Subject", escape(m.Subject))
	if m.Fence != 0 {
		set("Relay-Fence", strconv.FormatUint(m.Fence, 10))
	}
	if !m.Deadline.IsZero() {
		set("Relay-Deadline", deadline(m.Deadline))
	}
	for name, values := range h.always {
		header[name] = values
	}
	if h.keys != nil {
		now := time.Now()
		timestamp, signature := webhook.Sign(h.keys.Current(now), m.ID, now, m.Data)
		set(webhook.HeaderID, m.ID)
		set(webhook.HeaderTimestamp, timestamp)
		set(webhook.HeaderSignature, signature)
	}
	return header
}

// transportError is a round trip that gave no answer. Its text is bounded: net/http quotes a malformed reply at whatever
// length the server chose.
type transportError struct {
	at  string
	err error
}

func (e *transportError) Error() string {
	return e.at + ": " + snippet.Head([]byte(e.err.Error()), maxShown/2)
}
func (e *transportError) Unwrap() error { return e.err }

// reply is what counts of an HTTP response.
type reply struct {
	status     int
	retryAfter []string
	quota      quota
	body       []byte // at most maxReply; none when the status acknowledges
	result     []byte // for a caller, when the status acknowledges
	resultType string
	// resultCoding is how it is compressed, say; empty: not.
	resultCoding string
	token        string // that was sent
	err          error  // what ended the body early
}

// send makes one round trip, and says how far it came. With most above 0 a caller waits for that much of an acknowledging answer.
func (h *Handler) send(ctx context.Context, to *url.URL, data []byte, header nethttp.Header, most int) (r reply, at course, err error) {
	if h.direct.takes(to, header, data) {
		resp, err := h.direct.roundTrip(ctx, h.cfg.Method, to, header, data, &at)
		if err == nil {
			r = h.read(resp, most)
		}
		return r, at, err
	}
	t := new(trace)
	req := h.request.WithContext(t.attach(ctx)) // a copy
	req.URL, req.Host = to, to.Host
	req.Header, req.ContentLength = header, int64(len(data))
	if len(data) > 0 {
		// With GetBody net/http itself can move on from a dead connection that it has written nothing to.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		t.body.Reset(data)
		req.Body = io.NopCloser(&t.body) // a type that net/http knows: it writes headers and body in one go
	}
	// Not through a Client, which would follow redirects, keep cookies and put the URL into its errors.
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return r, t.course(), err
	}
	return h.read(resp, most), t.course(), nil
}

// read takes from an answer what counts, and closes it.
func (h *Handler) read(resp *nethttp.Response, most int) (r reply) {
	defer resp.Body.Close() // what is left unread costs the connection, not the time
	if resp.StatusCode == nethttp.StatusSwitchingProtocols {
		// The body is now the bare connection, and reading it would not end with ctx.
		return reply{status: resp.StatusCode}
	}
	r = reply{
		status: resp.StatusCode, retryAfter: resp.Header.Values("Retry-After"),
		resultType: resp.Header.Get("Content-Type"), resultCoding: resp.Header.Get("Content-Encoding"),
		quota: quotaOf(resp.Header, time.Now()),
	}
	switch {
	case resp.Body == nethttp.NoBody:
	case h.ack.has(r.status) && most > 0:
		r.result, r.err = io.ReadAll(io.LimitReader(resp.Body, int64(most)+1)) // one more tells that it is cut
		if rest := int64(maxReply - len(r.result)); rest > 0 && r.err == nil && len(r.result) > most {
			_, r.err = io.Copy(io.Discard, io.LimitReader(resp.Body, rest))
		}
	case h.ack.has(r.status):
		_, r.err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply))
	default:
		r.body, r.err = io.ReadAll(io.LimitReader(resp.Body, maxReply))
	}
	return r
}

func (h *Handler) verdict(to endpoint, r *reply) error {
	if h.ack.has(r.status) {
		if r.err != nil {
			return &transportError{at: fmt.Sprintf("%s: cannot read the reply of status %d", to.name, r.status), err: r.err}
		}
		return nil
	}
	err := h.failure(to, r)
	switch {
	case h.dead.has(r.status): // ack went first
		return consumer.Dead(err)
	case r.status == nethttp.StatusGone && h.cfg.suspendsGone(h.to):
		return consumer.Suspend(err)
	case r.status == nethttp.StatusGone:
		return consumer.Dead(err)
	case r.status == nethttp.StatusTooManyRequests || r.status == nethttp.StatusServiceUnavailable:
		if d := retryAfter(r.retryAfter, time.Now()); d > 0 {
			return consumer.RetryAfter(d, err)
		}
	}
	return err
}

// failure is the answer as an error.
func (h *Handler) failure(to endpoint, r *reply) error {
	text := strconv.Itoa(r.status)
	if name := nethttp.StatusText(r.status); name != "" {
		text += " " + name
	}
	if r.status >= 300 && r.status < 400 {
		text += " (redirects are not followed)"
	}
	if shown := snippet.Head(r.body, maxShown); shown != "" {
		text += ": " + shown
	}
	return fmt.Errorf("%s: %s", to.name, text)
}
