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
	// ErrClosed: the Client, or its connection, was closed.
	ErrClosed = errors.New("client is closed")
	// ErrUnknown: the connection was away for longer than five seconds, and nothing was heard of the message in the 30 seconds after it
	// came back. It may have been handled meanwhile, and the outcome told to nobody; or it still waits. Only calls whose context has no
	// deadline end so. relay tells the outcome again and again for two minutes while nobody is there, so it is rare.
	ErrUnknown = errors.New("outcome unknown")
	// ErrDuplicate: the stream has a message with this Nats-Msg-Id already. Its outcome goes to whoever published that.
	ErrDuplicate = errors.New("the stream has a message with this id already")
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

	maxWait time.Duration
	links   chan nats.Status // changes of the connection
	// See the constants of these names.
	patience, silence time.Duration

	mu     sync.Mutex
	closed bool
	last   uint64
	calls  map[uint64]*call
}

// The times of a connection that was away.
const (
	// patience is for how long relay believes that a caller is only reconnecting: until then nothing is lost.
	patience = 5 * time.Second
	// silence is how long, after that and the reconnect, nothing may be heard of a call. relay sends what it has at least every ten seconds.
	silence = 30 * time.Second
)

// defaultMaxWait is how long a call lasts at most whose context has no deadline.
const defaultMaxWait = 24 * time.Hour

// Option changes what New makes.
type Option func(*Client)

// OnWait has f called each time that a message cannot be stored for now, and is tried again after next. f must not block.
func OnWait(f func(subject string, why error, next time.Duration)) Option {
	return func(c *Client) { c.waiting = f }
}

// MaxWait is how long a call lasts at most whose context has no deadline, as if it had that one; 24 hours without it. No call is
// without an end. d must be above 0.
func MaxWait(d time.Duration) Option {
	return func(c *Client) { c.maxWait = d }
}

// New subscribes to an inbox on nc. Close ends that; nc stays open, and whoever made it closes it.
func New(nc *nats.Conn, opts ...Option) (*Client, error) {
	c := &Client{nc: nc, calls: make(map[uint64]*call), prefix: nc.NewInbox() + ".", waiting: func(string, error, time.Duration) {}, maxWait: defaultMaxWait, patience: patience, silence: silence}
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
	c.links = nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	go c.follow()
	return c, nil
}

// follow ends the calls whose outcome may have been told while the connection was away.
func (c *Client) follow() {
	var away time.Time // since when
	var stale bool     // it was away for longer than anybody noticed
	for status := range c.links {
		switch now := time.Now(); {
		case status == nats.CLOSED:
			c.close(fmt.Errorf("%w: %w", ErrClosed, nats.ErrConnectionClosed))
		case status == nats.RECONNECTING && away.IsZero():
			away, stale = now, errors.Is(c.nc.LastError(), nats.ErrStaleConnection)
		case status == nats.CONNECTED && !away.IsZero():
			long := now.Sub(away)
			away = time.Time{}
			if long < c.patience && !stale {
				continue
			}
			c.mu.Lock()
			last := c.last
			c.mu.Unlock()
			time.AfterFunc(c.silence, func() { c.endUnheard(last, now, long) })
		}
	}
}

// endUnheard ends the calls up to number last of which nothing was heard since then, when the connection came back.
func (c *Client) endUnheard(last uint64, since time.Time, away time.Duration) {
	c.mu.Lock()
	var open []*call
	for number, k := range c.calls {
		if number <= last && k.unheard(since) {
			open = append(open, k)
		}
	}
	c.mu.Unlock()
	for _, k := range open {
		k.finish(nil, fmt.Errorf("%w: the connection was lost for %v, and no answer came since it returned %v ago", ErrUnknown, away.Round(time.Millisecond), c.silence))
	}
}

// Close ends all calls with [ErrClosed] and loses the interest in their messages.
func (c *Client) Close() {
	c.close(ErrClosed)
}

func (c *Client) close(why error) {
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
	c.nc.RemoveStatusListener(c.links)
	_ = c.sub.Unsubscribe() // the connection is gone
	for _, k := range open {
		k.finish(nil, why)
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
	if k != nil && kind != kindStored {
		k.heard.Store(time.Now().UnixNano())
	}
	if kind == kindOutcome && m.Header.Get("Relay-Outcome") != "" && subject.Inbox(m.Reply, "") {
		_ = m.Respond(nil) // also when it comes too late, or again: relay tells it no more
	}
	switch {
	case kind == kindQuestion && !subject.Inbox(m.Reply, ""): // whoever asks would have this client publish there
	case kind == kindQuestion:
		// Of a call that is over nothing is left, and that says it all.
		if k == nil || k.ctx.Err() != nil {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Relay-Interested": {"no"}}})
		} else {
			k.askedBy(m.Reply)
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
// at once; the error says how it ended. m is not changed. Headers that Do sets: Relay-Reply-To, Relay-Confirm, Relay-Interest, Nats-Msg-Id
// unless m has one, and Relay-Expires-In when m has no deadline. A ctx without a deadline gets one, see [MaxWait].
//
// The connection may be away meanwhile. For five seconds relay takes the caller to be reconnecting, and nothing is lost. After that
// a message that has not started is forgotten ([ErrForgotten]); of one that has, the outcome is told for two minutes, unless relay ends
// meanwhile; see [ErrUnknown] for what is left. A connection that is closed, as one that has given up to reconnect, ends all calls with
// [ErrClosed].
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
// the client's messages arrive.
func (c *Client) Start(ctx context.Context, m *nats.Msg, f func(*Result, error)) error {
	k, err := c.begin(ctx, m, toBeHandled, f)
	if err != nil {
		return err
	}
	k.msg.Header.Set("Relay-Reply-To", k.subject(kindOutcome))
	k.msg.Header.Set("Relay-Confirm", "true")
	k.msg.Header.Set("Relay-Interest", k.subject(kindQuestion))
	k.start()
	return nil
}

// Publish stores m, confirmed, and returns where: the stream and the sequence there. It blocks until then, at most until ctx is done;
// a stream that is full, or away, is tried again with backoff, so that the sender is slowed down to what the stream takes. Nobody
// waits for an outcome.
func (c *Client) Publish(ctx context.Context, m *nats.Msg) (stream string, sequence uint64, err error) {
	done := make(chan error, 1)
	k, err := c.begin(ctx, m, toBeStored, func(_ *Result, err error) { done <- err })
	if err != nil {
		return "", 0, err
	}
	k.start()
	if err := <-done; err != nil {
		return "", 0, err
	}
	return k.ack.Stream, k.ack.Seq, nil
}

func (c *Client) begin(ctx context.Context, m *nats.Msg, awaits awaits, f func(*Result, error)) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, ended(ctx, nil)
	}
	k := &call{c: c, ctx: ctx, awaits: awaits, done: f, msg: &nats.Msg{Subject: m.Subject, Data: m.Data, Header: make(nats.Header, len(m.Header)+4)}}
	for name, values := range m.Header {
		k.msg.Header[name] = values
		switch strings.ToLower(name) {
		case "relay-deadline", "relay-expires-in":
			k.hasDeadline = true
		case "nats-msg-id":
			k.hasID = true
		case "relay-reply-to", "relay-interest", "relay-confirm":
			delete(k.msg.Header, name) // in whatever case: they are the client's
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if _, ok := ctx.Deadline(); !ok {
		k.ctx, k.end = context.WithTimeout(ctx, c.maxWait)
	}
	c.last++
	k.number = c.last
	c.calls[k.number] = k
	return k, nil
}
