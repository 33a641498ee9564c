// Package client publishes work for relay and waits for what becomes of it, on one NATS connection.
//
//	c, err := client.New(nc)
//	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
//	result, err := c.Do(ctx, &nats.Msg{Subject: "orders.eu.created", Data: body})
//
// The message is stored in its stream like any other, so it survives whatever happens to relay and its handlers, and is tried again
// when they fail. While ctx lives, the client answers relay's question whether the message is still wanted; when ctx ends, the answer
// is no, so that work is not begun, or is cancelled, for somebody who is gone. Nothing has to be told for that: a process that dies is
// not interested either.
//
// The route must permit the subjects that relay is to ask and to answer:
//
//	caller: {reply: [_INBOX.>], interest: [_INBOX.>]}
//
// Any number of calls share one subscription, and none has a goroutine of its own.
package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/subject"
)

// How a call can end without a result. Use errors.Is; an error that relay told is also an [*OutcomeError].
var (
	// ErrTimedOut: ctx was over before the outcome came. The message may still be handled, if it has started already.
	ErrTimedOut = errors.New("no result in time")
	// ErrDead: the message cannot be handled, and is in the dead letters.
	ErrDead = errors.New("dead-lettered")
	// ErrDropped: the handler, or the route, decided that nobody needs the message.
	ErrDropped = errors.New("dropped")
	// ErrExpired: the deadline was over before the message started.
	ErrExpired = errors.New("expired")
	// ErrForgotten: relay was told, or concluded, that this client does not want the message any more.
	ErrForgotten = errors.New("forgotten")
	// ErrFull: the stream takes no more messages for now, and ctx ended before it did.
	ErrFull = errors.New("the stream is full")
	// ErrNoStream: no stream holds the subject.
	ErrNoStream = errors.New("no stream holds the subject")
	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("client is closed")
)

// OutcomeError is what relay told of a message that has no result.
type OutcomeError struct {
	ID       string // Relay-Id
	Outcome  string // dead, dropped, expired or forgotten
	Attempts int
	Text     string // the last error, or why
}

// Error names the outcome, and why.
func (e *OutcomeError) Error() string {
	text := e.Outcome
	switch {
	case e.Attempts == 1:
		text += " after 1 attempt"
	case e.Attempts > 1:
		text += fmt.Sprintf(" after %d attempts", e.Attempts)
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Is makes it the sentinel of its outcome.
func (e *OutcomeError) Is(target error) bool {
	switch target {
	case ErrDead:
		return e.Outcome == "dead"
	case ErrDropped:
		return e.Outcome == "dropped"
	case ErrExpired:
		return e.Outcome == "expired"
	case ErrForgotten:
		return e.Outcome == "forgotten"
	}
	return false
}

// Result is what the handler returned.
type Result struct {
	ID        string      // Relay-Id of the message
	Data      []byte      // at most what the route's caller.max_result allows
	Truncated bool        // there was more
	Header    nats.Header // those that the handler set, and relay's
	Attempts  int
}

// Client is a caller. Create it with [New]. Its methods are safe for concurrent use.
type Client struct {
	nc      *nats.Conn
	sub     *nats.Subscription
	prefix  string // <inbox>.
	waiting func(subject string, err error, next time.Duration)

	mu     sync.Mutex
	closed bool
	last   uint64
	calls  map[uint64]*call
}

// Option changes what New makes.
type Option func(*Client)

// OnWait has f called each time that a message cannot be stored for now, and is tried again after next. f must not block.
func OnWait(f func(subject string, why error, next time.Duration)) Option {
	return func(c *Client) { c.waiting = f }
}

// New subscribes to an inbox on nc. Close ends that; nc stays open, and whoever made it closes it.
func New(nc *nats.Conn, opts ...Option) (*Client, error) {
	c := &Client{nc: nc, calls: make(map[uint64]*call), prefix: nc.NewInbox() + ".", waiting: func(string, error, time.Duration) {}}
	for _, o := range opts {
		o(c)
	}
	sub, err := nc.Subscribe(c.prefix+"*.*", c.arrived)
	if err != nil {
		return nil, err
	}
	// However many calls: a question must not be lost because others came at the same time.
	_ = sub.SetPendingLimits(-1, -1)
	c.sub = sub
	return c, nil
}

// Close ends all calls with [ErrClosed] and loses the interest in their messages.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	open := make([]*call, 0, len(c.calls))
	for _, k := range c.calls {
		open = append(open, k)
	}
	c.mu.Unlock()
	_ = c.sub.Unsubscribe() // the connection is gone
	for _, k := range open {
		k.finish(nil, ErrClosed)
	}
}

// The kinds of what arrives: the last token of the subject.
const (
	kindStored   = "p" // the stream's answer to a publish
	kindQuestion = "i"
	kindOutcome  = "r"
)

// arrived takes everything that comes in. It does not block.
func (c *Client) arrived(m *nats.Msg) {
	token, kind, _ := strings.Cut(strings.TrimPrefix(m.Subject, c.prefix), ".")
	n, err := strconv.ParseUint(token, 36, 64)
	if err != nil {
		return
	}
	c.mu.Lock()
	k := c.calls[n]
	c.mu.Unlock()
	switch {
	case kind == kindQuestion && !subject.Inbox(m.Reply, ""): // whoever asks would have this client publish there
	case kind == kindQuestion:
		// Of a call that is over nothing is left, and that says it all.
		if k == nil || k.ctx.Err() != nil {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Relay-Interested": {"no"}}})
		} else {
			_ = m.Respond(nil)
		}
	case k == nil: // late
	case kind == kindStored:
		k.stored(m)
	case kind == kindOutcome:
		k.outcome(m)
	}
}

// Do publishes m, confirmed, and returns its result. It blocks until the outcome comes, at most until ctx is done, and then returns
// at once; the error says how it ended. m is not changed. Headers that Do sets: Relay-Reply-To, Relay-Interest, Nats-Msg-Id
// unless m has one, and Relay-Expires-In when ctx has a deadline and m has none.
//
// A stream that is full, or away, is tried again until ctx is done. The calls of [Client.OnWait] say so.
func (c *Client) Do(ctx context.Context, m *nats.Msg) (*Result, error) {
	type end struct {
		r   *Result
		err error
	}
	done := make(chan end, 1)
	if err := c.Start(ctx, m, func(r *Result, err error) { done <- end{r, err} }); err != nil {
		return nil, err
	}
	e := <-done // by the outcome, or the end of ctx
	return e.r, e.err
}

// Start is Do that does not wait: f is called once, with what Do would return, when it is there. f must not block: it is called where
// the client's messages arrive. Without ctx that ends, and without an outcome, the call stays for ever.
func (c *Client) Start(ctx context.Context, m *nats.Msg, f func(*Result, error)) error {
	k, err := c.begin(ctx, m, f)
	if err != nil {
		return err
	}
	k.msg.Header.Set("Relay-Reply-To", k.subject(kindOutcome))
	k.msg.Header.Set("Relay-Interest", k.subject(kindQuestion))
	k.start()
	return nil
}

// Publish stores m, confirmed, and returns where: the stream and the sequence there. It blocks until then, at most until ctx is done;
// a stream that is full, or away, is tried again with backoff, so that the sender is slowed down to what the stream takes. Nobody
// waits for an outcome.
func (c *Client) Publish(ctx context.Context, m *nats.Msg) (stream string, sequence uint64, err error) {
	done := make(chan error, 1)
	k, err := c.begin(ctx, m, func(_ *Result, err error) { done <- err })
	if err != nil {
		return "", 0, err
	}
	k.publishOnly = true
	k.start()
	if err := <-done; err != nil {
		return "", 0, err
	}
	return k.ack.Stream, k.ack.Seq, nil
}

func (c *Client) begin(ctx context.Context, m *nats.Msg, f func(*Result, error)) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, ended(ctx, nil)
	}
	k := &call{c: c, ctx: ctx, done: f, msg: &nats.Msg{Subject: m.Subject, Data: m.Data, Header: make(nats.Header, len(m.Header)+4)}}
	for name, values := range m.Header {
		k.msg.Header[name] = values
		switch strings.ToLower(name) {
		case "relay-deadline", "relay-expires-in":
			k.hasDeadline = true
		case "nats-msg-id":
			k.hasID = true
		case "relay-reply-to", "relay-interest":
			delete(k.msg.Header, name) // in whatever case: they are the client's
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.last++
	k.number = c.last
	c.calls[k.number] = k
	return k, nil
}
