// Package request is the handler that asks a service for each message: one of the nats micro framework, or whoever answers
// requests.
//
// # The request
//
// The body is the message's, byte for byte. Its headers are copied as far as the config names them, and never those beginning
// with Nats- or Relay- in any case; then the config's own; then
//
//	Relay-Id        the same for every attempt and replay; services deduplicate by it
//	Relay-Attempt   1 for the first
//	Relay-Route     the route's name
//	Relay-Subject   the subject of the message
//	Relay-Fence     with instances: one, a number that grows with each instance that gets the route
//	Relay-Deadline  when this attempt times out, RFC 3339
//
// All requests of a route share one subscription for the answers.
//
// # The answer
//
//	Relay-Verdict            ack, retry, snooze, dead or drop, in relay's own words, with Relay-Delay (30s, or seconds) and Relay-Error
//	Nats-Service-Error-Code  the tables of the config (ack, dead), as the statuses of HTTP; 429 and 503 may name a pause in Retry-After;
//	                         every other code is a retry
//	neither                  an ack, and the body is the result
//
// Nobody who answers is no attempt: the request reached nobody. No answer in time is one.
//
// # Where it may go
//
// As with the handler forward: tokens come from whoever published, so that a template that begins with one needs a list of what is
// allowed, and what belongs to the server, and relay's own subjects, are refused whatever the list says. A subject that a stream
// takes is refused at start: the stream's confirmation would come before the answer. Should that change later, a reply without
// headers that is a JSON object with stream and seq is a failure. A service that answers so sends Relay-Verdict too.
package request

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
	"github.com/relaymq/relay/consumer/handler/internal/outbound"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
	"github.com/relaymq/relay/consumer/handler/internal/status"
	"github.com/relaymq/relay/internal/requests"
	"github.com/relaymq/relay/internal/transient"
)

const maxShown = 1 << 10

// Handler asks at the subjects of a template. It may be shared by all keys of a route and called from any number of
// goroutines.
type Handler struct {
	requests  *requests.Requester
	js        jetstream.JetStream
	cfg       Config
	way       outbound.Way
	copied    headerlist.List
	ack, dead *status.Set
}

var (
	_ consumer.Handler = (*Handler)(nil)
	_ consumer.Checker = (*Handler)(nil)
	_ consumer.Outside = (*Handler)(nil)
	_ consumer.Stopper = (*Handler)(nil)
)

// OutOfProcess says that the work is done by whoever answers.
func (*Handler) OutOfProcess() {}

// New returns the handler. It does not ask the server anything. own are patterns of subjects where nobody is asked, whatever the
// config says: relay's own.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream, own ...string) (*Handler, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Handler{requests: requests.New(nc), js: js, cfg: cfg, copied: headerlist.New(cfg.ForwardHeaders)}
	// Validate has parsed all three.
	h.way, _ = cfg.target().Way(own)
	h.ack, _ = status.Parse(cfg.Ack)
	h.dead, _ = status.Parse(cfg.Dead)
	return h, nil
}

// Check asks the server whether a stream takes what will be asked: its confirmation would come before the answer. That nobody
// answers at the moment is no error, nor is a server that does not answer.
func (h *Handler) Check(ctx context.Context) error {
	targets := h.cfg.target().Patterns()
	ctx, cancel := context.WithCancel(ctx) // ends a list that is not read to its end
	defer cancel()
	for _, target := range targets {
		names := h.js.StreamNames(ctx, jetstream.WithStreamListSubject(target))
		for name := range names.Name() {
			s, err := h.js.Stream(ctx, name)
			switch {
			case err == nil && !s.CachedInfo().Config.NoAck:
				return fmt.Errorf("subject: the stream %s holds %s, so that relay would take its confirmation for the answer of the service", name, target)
			case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) && !passes(err):
				return fmt.Errorf("subject: the stream %s holds %s, and relay cannot read whether the stream confirms: %w", name, target, err)
			}
		}
		if err := names.Err(); err != nil && !passes(err) {
			return fmt.Errorf("subject: cannot read whether a stream holds %s: %w", target, err)
		}
	}
	return nil
}

// Stop ends the subscription for the answers. The handler can be used again after it.
func (h *Handler) Stop(context.Context) error {
	h.requests.Close()
	return nil
}

// passes tells of an error that says nothing of the streams.
func passes(err error) bool { return transient.Is(err) || errors.Is(err, context.Canceled) }

// Handle asks, and returns the verdict of the answer.
func (h *Handler) Handle(ctx context.Context, m *consumer.Msg) error {
	to, err := h.way.Of(m.Subject)
	if err != nil {
		return consumer.Dead(fmt.Errorf("request for %q: %w", m.Subject, err))
	}
	reply, err := h.requests.Request(ctx, &nats.Msg{Subject: to, Data: m.Data, Header: h.header(m)})
	if err != nil {
		return failed(fmt.Errorf("request %s: %w", to, err))
	}
	if stream := streamOf(reply); stream != "" {
		return fmt.Errorf("request %s: no service answered: the stream %s holds this subject, and its confirmation came first", to, stream)
	}
	if err := h.verdict(reply); err != nil {
		return err
	}
	m.Reply(reply.Data)
	if typ := reply.Header.Get("Content-Type"); typ != "" {
		m.ReplyHeader("Content-Type", typ)
	}
	return nil
}

// failed is the verdict of a request without an answer.
func failed(err error) error {
	for _, unsent := range []error{
		nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting,
	} {
		if errors.Is(err, unsent) {
			return consumer.NotStarted(err)
		}
	}
	// The message's own fault, and the same every time; nats.go reads names of headers that it does not write.
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg) {
		return consumer.Dead(err)
	}
	return err
}

func (h *Handler) header(m *consumer.Msg) nats.Header {
	header := make(nats.Header, 5+len(h.cfg.Headers)+len(h.cfg.ForwardHeaders))
	outbound.CopyHeaders(header, m.Header, h.copied)
	for name, value := range h.cfg.Headers {
		for other := range header { // NATS keeps a publisher's spelling
			if strings.EqualFold(other, name) {
				delete(header, other)
			}
		}
		header[name] = []string{value}
	}
	// One allocation for all values. None has room to be appended to.
	values := make([]string, 0, 6)
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set("Relay-Id", m.ID)
	set("Relay-Attempt", strconv.Itoa(m.Attempt))
	set("Relay-Route", m.Route)
	set("Relay-Subject", m.Subject)
	if m.Fence != 0 {
		set("Relay-Fence", strconv.FormatUint(m.Fence, 10))
	}
	if !m.Deadline.IsZero() {
		set("Relay-Deadline", m.Deadline.UTC().Format(time.RFC3339Nano))
	}
	return header
}

// verdict reads an answer. Header names are taken as they are written here: services are told so.
func (h *Handler) verdict(reply *nats.Msg) error {
	if word := reply.Header.Get("Relay-Verdict"); word != "" {
		return ownWords(word, reply)
	}
	code := reply.Header.Get(micro.ErrorCodeHeader)
	text := reply.Header.Get(micro.ErrorHeader)
	if code == "" && text == "" {
		return nil
	}
	number, _ := strconv.Atoi(code) // 0 is in no table
	if h.ack.Has(number) {
		return nil
	}
	if text == "" {
		text = string(reply.Data)
	}
	err := fmt.Errorf("request: error %s: %s", snippet.Head([]byte(code), 32), snippet.Head([]byte(text), maxShown))
	switch {
	case h.dead.Has(number):
		return consumer.Dead(err)
	case number == 429 || number == 503:
		if d := status.RetryAfter(reply.Header.Values("Retry-After"), time.Now()); d > 0 {
			return consumer.RetryAfter(d, err)
		}
	}
	return err
}

// streamOf names the stream whose answer to a publisher this is, a refusal too; "" when it is none. A stream may have been made
// after Check. It sets no headers.
func streamOf(reply *nats.Msg) string {
	if len(reply.Header) > 0 || !bytes.HasPrefix(reply.Data, []byte(`{"`)) || !bytes.Contains(reply.Data, []byte(`"seq"`)) {
		return ""
	}
	var ack struct {
		Stream string
		Seq    *uint64
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Seq == nil {
		return ""
	}
	return ack.Stream
}

// ownWords is a verdict that the service names itself.
func ownWords(word string, reply *nats.Msg) error {
	text := snippet.Head([]byte(reply.Header.Get("Relay-Error")), maxShown)
	if text == "" {
		text = "the service gave no reason"
	}
	err := errors.New(text)
	delay, bad := parseDelay(reply.Header.Get("Relay-Delay"))
	if bad != nil {
		err = fmt.Errorf("%s (%w)", text, bad)
	}
	switch strings.ToLower(word) {
	case "ack":
		return nil
	case "retry":
		return consumer.RetryIn(delay, err)
	case "snooze":
		return consumer.Snooze(delay)
	case "dead":
		return consumer.Dead(err)
	case "drop":
		return consumer.Drop(text)
	}
	return fmt.Errorf("Relay-Verdict: %q is not a verdict: the service must answer ack, retry, snooze, dead or drop (%s)", snippet.Head([]byte(word), 32), text)
}

// parseDelay reads 30s, or a number of seconds.
func parseDelay(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		d, err = time.ParseDuration(s + "s")
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("Relay-Delay: %q is not a delay: the service must answer a duration such as 30s", snippet.Head([]byte(s), 32))
	}
	return d, nil
}
