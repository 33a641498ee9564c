package consumer

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/reply"
	"github.com/relaymq/relay/internal/limit"
)

// Handler handles the messages of a route, one call an attempt.
//
// What it returns is the verdict: nil acknowledges the message; [Dead], [Drop], [Snooze], [RetryAfter], [RetryIn],
// [NotStarted], [NoAnswer], [StopChild] and [FailRoute] say so themselves; any other error is retried by the route's policy.
//
// A panic or runtime.Goexit is a stop: relay survives it, the message counts one failed attempt, and the key gets a
// fresh child after its backoff. A panic in a goroutine that the handler started, a fatal error of the Go runtime and
// os.Exit end the whole process: nobody can catch those.
//
// ctx ends at the route's timeout, when the child is stopped, or when relay shuts down and the drain time is over. A
// handler that ignores it for a second more is abandoned: its slot counts as stuck, and its message is retried. Handle
// is called from several goroutines at once.
type Handler interface {
	Handle(ctx context.Context, m *Msg) error
}

// Outside is implemented by handlers whose work is done in another process: no message can end this one through them, and
// they neither change nor keep Msg.Data and Msg.Header. So relay saves the cost of finding messages that end processes
// and of copies, as with [Route.OwnBytes].
type Outside interface {
	// OutOfProcess is never called.
	OutOfProcess()
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, m *Msg) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m *Msg) error { return f(ctx, m) }

// Factory makes the handler of one child of a key. A child that stops is discarded, and a new one is made. An error or
// a panic of the Factory counts as a stop of that child and spends no attempt of any message.
//
// What it makes may also be a [Starter] and a [Stopper]. What [Checker] and [Outside] say of a Handler, [Route.Check] and
// [Route.Outside] say of a Factory.
type Factory func(key string) (Handler, error)

// Starter is a Handler with something to do before its first message. ctx ends at the route's timeout. For a handler made by a Factory, an error
// counts as a stop. A handler that all keys share is started with the first message, and again with a later one while Start returns an error: that
// spends no attempt. A handler that replaces another one while its route runs ([Relay.Change]) is started first, and an error refuses the change.
type Starter interface {
	Start(ctx context.Context) error
}

// Stopper is a Handler with something to do after its last message: the child stopped, was idle, or relay shuts down. Stop is
// called once, after all calls of Handle have returned, except abandoned ones. It is not called for a handler that never
// started. ctx ends at the route's timeout, and, for one that all keys share, with the drain, though not within a second.
type Stopper interface {
	Stop(ctx context.Context) error
}

// Checker is a Handler that can tell before the first message that it cannot work: relay calls Check at start and
// refuses to run on an error. Check must not have effects and must not block beyond ctx. A peer that is only down for
// now is not an error.
type Checker interface {
	Check(ctx context.Context) error
}

// Msg is one message as a handler sees it.
//
// The handler may keep and change Data and Header: a later attempt, and the dead letter, have the bytes as they were
// published.
type Msg struct {
	// ID is the same for every attempt and every replay, and no other message has it; a dead letter keeps it (Entry.ID of package dlq). It holds no dots, so that it
	// can be a webhook-id.
	ID    string
	Route string
	// Subject is the one the message was published on. It may hold any byte but space, CR and LF.
	Subject string
	Data    []byte
	// Header holds the headers as they were published, or nil.
	Header nats.Header
	// Attempt is 1 for the first start of a handler for this message.
	Attempt int

	// Stream, Consumer, Sequence and Time are the message's origin; a replayed or parked message keeps them.
	Stream   string
	Consumer string
	Sequence uint64
	Time     time.Time
	// Replay counts how many times the message was replayed from the dead letters.
	Replay int
	// Deadline is when this attempt times out.
	Deadline time.Time
	// Fence, of a route with instances: one, is a number that grows with each instance that gets the route. A receiver that keeps the greatest
	// fence it has seen can refuse late writes from an instance that lost the route. Zero: all instances handle messages of the route.
	Fence uint64

	result *reply.Result               // nil: nobody waits for it
	own    func() *limit.Limit         // of the route alone, which Slow is for; nil: not by this message
	gate   func(context.Context) error // see StillWanted; nil: nobody need be asked
}
