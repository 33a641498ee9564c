// Package forward is the handler that publishes each message to another subject of JetStream, and acknowledges it when a
// stream has it.
//
// # The copy
//
// The body is the message's, byte for byte. Its headers are copied as far as the config names them, and never those beginning
// with Nats- or Relay- in any case: they would have their effect a second time (roll up the target, expire the copy, expect a
// sequence). The copy has two of its own:
//
//	Nats-Msg-Id  made of the message's id, publish time and replay count, so that an attempt whose answer got lost does
//	             not make a second copy within the target's dedupe window
//	Relay-Hops   how many forwards the message has been through
//
// The time is part of the id because ids begin again in a stream that is made anew: its first messages are no duplicates
// of the old one's.
//
// # Where it may go
//
// Tokens of the subject come from whoever published the message, who may have the right to publish to the route's subjects
// and to no others. So a template that begins with one of them needs a list of what is allowed. What belongs to the server
// ($JS, $KV, $SYS, $O and all others with a $, _INBOX), and relay's own subjects, are refused whatever the list says.
//
// # Loops
//
// A template that leads straight back is a matter of the config, which compares [Config.Pattern] with the subjects of
// routes. What it cannot see, a ring over several services or accounts, ends at 16 hops: the message is dead.
//
// # Verdicts
//
// Dead: the expanded subject cannot be published to, or is not allowed, the copy is larger than the server or the stream takes, a header
// name that cannot be written, too many hops. Retry: no stream takes the subject, the stream is full, no answer in time, anything else. A permission that is
// missing shows as no answer in time, since the server reports it to the connection and not to the publish.
package forward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
	"github.com/relaymq/relay/consumer/handler/internal/outbound"
	"github.com/relaymq/relay/internal/requests"
)

const (
	hopsHeader = "Relay-Hops"
	maxHops    = 16
)

// Handler publishes messages to the subjects of a template. It may be shared by all keys of a route and called from any
// number of goroutines.
type Handler struct {
	js       jetstream.JetStream
	requests *requests.Requester
	cfg      Config
	way      outbound.Way
	copied   headerlist.List
}

var (
	_ consumer.Handler = (*Handler)(nil)
	_ consumer.Checker = (*Handler)(nil)
	_ consumer.Outside = (*Handler)(nil)
	_ consumer.Stopper = (*Handler)(nil)
)

// OutOfProcess says that the work is done by whoever consumes the other stream.
func (*Handler) OutOfProcess() {}

// New returns the handler. It does not ask the server anything. own are patterns of subjects that are never published to,
// whatever the config says: relay's own.
func New(cfg Config, js jetstream.JetStream, own ...string) (*Handler, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	way, err := cfg.target().Way(own)
	if err != nil {
		return nil, err
	}
	return &Handler{js: js, requests: requests.New(js.Conn()), cfg: cfg, way: way, copied: headerlist.New(cfg.ForwardHeaders)}, nil
}

// Check asks the server whether a stream takes what will be published. A server that does not answer is no error.
func (h *Handler) Check(ctx context.Context) error {
	targets := h.cfg.target().Patterns()
	ctx, cancel := context.WithCancel(ctx) // ends a list that is not read to its end
	defer cancel()
	for _, target := range targets {
		names := h.js.StreamNames(ctx, jetstream.WithStreamListSubject(target))
		for range names.Name() {
			return nil
		}
		if names.Err() != nil {
			return nil
		}
	}
	return fmt.Errorf("subject: no stream holds %s", strings.Join(targets, " or "))
}

// Stop ends the subscription for the answers. The handler can be used again after it.
func (h *Handler) Stop(context.Context) error {
	h.requests.Close()
	return nil
}

// Handle publishes a copy of m and waits for the stream's answer.
func (h *Handler) Handle(ctx context.Context, m *consumer.Msg) error {
	to, err := h.way.Of(m.Subject)
	if err != nil {
		return consumer.Dead(fmt.Errorf("forward %q: %w", m.Subject, err))
	}
	hops := hopsOf(m.Header)
	if hops >= maxHops {
		return consumer.Dead(fmt.Errorf("forwarding loop: the message has been forwarded %d times, and would go to %s", hops, to))
	}
	_, err = h.requests.Publish(ctx, &nats.Msg{Subject: to, Data: m.Data, Header: h.header(m, hops+1)})
	if err == nil { // a duplicate too: an earlier attempt's copy is there
		return nil
	}
	err = fmt.Errorf("forward to %s: %w", to, err)
	switch {
	case impossible(err):
		return consumer.Dead(err)
	case errors.Is(err, jetstream.ErrNoStreamResponse) && h.cfg.target().IsFixed(): // whatever the message
		return consumer.NoAnswer(err)
	}
	return err
}

// hopsOf reads the hop count. A stranger may have set it to anything: what is no count is none, and the copy has a true
// one again.
func hopsOf(h nats.Header) int {
	n, err := strconv.ParseUint(h.Get(hopsHeader), 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

func (h *Handler) header(m *consumer.Msg, hops int) nats.Header {
	header := make(nats.Header, len(h.cfg.ForwardHeaders)+2)
	outbound.CopyHeaders(header, m.Header, h.copied)
	header.Set(nats.MsgIdHdr, fmt.Sprintf("%s_%d_%d", m.ID, m.Time.UnixNano(), m.Replay))
	header.Set(hopsHeader, strconv.Itoa(hops))
	return header
}

// impossible tells whether a refusal is the message's own fault and will be the same every time: larger than the server's
// max_payload or the stream's max_msg_size, or with a header name that nats.go reads but does not write (another client
// may have written it).
func impossible(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg) ||
		errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum
}
