package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// storeTimeout is how long the stream may take to say that it has the message. Then it is published again: the message id keeps it
	// from being stored twice.
	storeTimeout = 2 * time.Second
	// The pauses of a stream that is full or away.
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
	// noStreamFor is for how long nobody may answer, try after try, before it is believed that there is no such stream: one whose
	// leader is gone has nobody who answers either.
	noStreamFor = 5 * time.Second
)

// call is one message on its way. It lives in Client.calls until it is over.
type call struct {
	c      *Client
	ctx    context.Context
	number uint64
	msg    *nats.Msg
	done   func(*Result, error)

	awaits             awaits
	hasDeadline, hasID bool
	asker              string             // where the last question was answered
	end                context.CancelFunc // of a context without a deadline, which got one; nil: it had one
	heard              atomic.Int64       // when something was heard of the message last; Unix nanoseconds

	mu      sync.Mutex
	over    bool
	isThere bool // the stream has it
	ack     pubAck
	tries   int
	absent  absence
	last    error       // why it was not stored
	timer   *time.Timer // the next try, or the end of the patience with this one
	unhook  func() bool // from ctx
}

// awaits is what a call waits for.
type awaits int

const (
	toBeHandled awaits = iota
	toBeStored
)

// askedBy notes who asked last, to be told when the call ends before its outcome is there.
func (k *call) askedBy(reply string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asker = reply
}

// unheard tells whether the outcome may have been told to nobody: the message is stored, and nothing was heard of it since then.
func (k *call) unheard(since time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.awaits == toBeHandled && k.end != nil && k.isThere && k.heard.Load() < since.UnixNano()
}

// pubAck is what a stream says of a publish.
type pubAck struct {
	Stream    string `json:"stream"`
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	Error     *struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// errStreamFull is the server's code for "maximum messages exceeded" and its like.
const errStreamFull = 10077

func (k *call) subject(kind string) string {
	return k.c.prefix + strconv.FormatUint(k.number, 36) + "." + kind
}

func (k *call) start() {
	if !k.hasID {
		k.msg.Header.Set("Nats-Msg-Id", k.c.prefix+strconv.FormatUint(k.number, 36))
	}
	k.msg.Reply = k.subject(kindStored)
	k.mu.Lock()
	k.unhook = context.AfterFunc(k.ctx, func() { k.finish(nil, nil) })
	k.mu.Unlock()
	k.publish()
}

// publish sends the message, and looks after it until the stream has it.
func (k *call) publish() {
	k.mu.Lock()
	if k.over || k.isThere {
		k.mu.Unlock()
		return
	}
	if until, ok := k.ctx.Deadline(); ok && !k.hasDeadline && k.awaits == toBeHandled {
		// From when it is stored, by the server's clock: the clocks of callers are nobody's business.
		k.msg.Header.Set("Relay-Expires-In", max(time.Until(until), time.Millisecond).Round(time.Millisecond).String())
	}
	k.tries++
	k.again(storeTimeout)
	msg := *k.msg
	msg.Header = maps.Clone(k.msg.Header) // the next try writes to it
	k.mu.Unlock()
	if err := k.c.nc.PublishMsg(&msg); err != nil {
		if errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionReconnecting) {
			k.retry(err)
			return
		}
		k.finish(nil, err)
	}
}

// again sets the timer; with the lock.
func (k *call) again(d time.Duration) {
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.publish)
	} else {
		k.timer.Reset(d)
	}
}

// retry publishes again a little later.
func (k *call) retry(why error) {
	k.mu.Lock()
	if k.over || k.isThere {
		k.mu.Unlock()
		return
	}
	k.last = why
	d := min(minPause<<min(k.tries-1, 10), maxPause)
	d = d/2 + rand.N(d/2+1)
	k.again(d)
	k.mu.Unlock()
	k.c.waiting(k.msg.Subject, why, d)
}

// absence is for how long nobody has answered publishes. The zero absence is none.
type absence struct {
	since      time.Time
	reconnects uint64 // of the connection, then
}

// nobody notes that nobody answered, and returns for how long that is so. On another connection it begins anew: what was heard on
// the one before says nothing of the server on this one.
func (a *absence) nobody(now time.Time, reconnects uint64) time.Duration {
	if a.since.IsZero() || a.reconnects != reconnects {
		*a = absence{now, reconnects}
	}
	return now.Sub(a.since)
}

// stored is the stream's answer.
func (k *call) stored(m *nats.Msg) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		reconnects := k.c.nc.Stats().Reconnects
		k.mu.Lock()
		gone := k.absent.nobody(time.Now(), reconnects)
		k.mu.Unlock()
		if gone >= noStreamFor {
			k.finish(nil, fmt.Errorf("%w: %s", ErrNoStream, k.msg.Subject))
			return
		}
		k.retry(ErrNoStream)
		return
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return // not a stream's: somebody else listens on the subject
	}
	k.mu.Lock()
	k.absent = absence{} // somebody answers
	k.mu.Unlock()
	if e := ack.Error; e != nil {
		err := fmt.Errorf("%s (%d)", e.Description, e.ErrCode)
		switch {
		case e.ErrCode == errStreamFull, e.Code == 429: // 429: the server holds too many messages that the stream has yet to store
			k.retry(fmt.Errorf("%w: %w", ErrFull, err))
		case e.Code == 503: // no leader, or the server shuts down
			k.retry(err)
		default:
			k.finish(nil, err)
		}
		return
	}
	if ack.Stream == "" {
		return
	}
	k.mu.Lock()
	k.isThere, k.ack = true, ack
	if !ack.Duplicate {
		k.heard.Store(time.Now().UnixNano())
	}
	k.timer.Stop()
	tries := k.tries
	k.mu.Unlock()
	switch {
	case k.awaits == toBeStored:
		k.finish(nil, nil)
	case ack.Duplicate && k.hasID && tries == 1: // else it may be the one of an earlier try
		k.finish(nil, fmt.Errorf("%w: %s, as message %d of stream %s", ErrDuplicate, k.msg.Header.Get("Nats-Msg-Id"), ack.Seq, ack.Stream))
	}
}

// outcome is relay's.
func (k *call) outcome(m *nats.Msg) {
	attempts, _ := strconv.Atoi(m.Header.Get("Relay-Attempts"))
	id := m.Header.Get("Relay-Id")
	switch outcome := m.Header.Get("Relay-Outcome"); outcome {
	case "":
		return // not relay's
	case "done":
		k.finish(&Result{ID: id, Data: m.Data, Header: m.Header, Attempts: attempts, Truncated: m.Header.Get("Relay-Result-Truncated") != ""}, nil)
	default:
		k.finish(nil, &OutcomeError{ID: id, Outcome: outcome, Attempts: attempts, Text: m.Header.Get("Relay-Error")})
	}
}

// finish ends the call, once. With neither, of a call that waits for an outcome, its context has ended.
func (k *call) finish(r *Result, err error) {
	k.mu.Lock()
	if k.over {
		k.mu.Unlock()
		return
	}
	k.over = true
	stored, last, asker := k.isThere, k.last, k.asker
	if k.timer != nil {
		k.timer.Stop()
	}
	if k.unhook != nil {
		k.unhook()
	}
	k.mu.Unlock()
	k.c.mu.Lock()
	delete(k.c.calls, k.number)
	k.c.mu.Unlock()
	if told := (*OutcomeError)(nil); r == nil && asker != "" && !errors.As(err, &told) {
		_ = k.c.nc.PublishMsg(&nats.Msg{Subject: asker, Header: nats.Header{"Relay-Interested": {"no"}}}) // so that work that runs ends at once
	}
	if r == nil && err == nil && (k.awaits != toBeStored || !stored) {
		if stored {
			last = nil
		}
		err = ended(k.ctx, last)
	}
	if k.end != nil {
		k.end()
	}
	k.done(r, err)
}

// ended is the error of a call whose context is over. It is also the context's.
func ended(ctx context.Context, notStored error) error {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrTimedOut, err)
	}
	if notStored != nil {
		return fmt.Errorf("%w; not stored: %w", err, notStored)
	}
	return err
}
