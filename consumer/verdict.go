package consumer

import (
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/supervise"
)

// VerdictKind is the kind of a verdict. The zero value is VerdictRetry, so that a verdict that was not understood loses nothing.
type VerdictKind uint8

// The kinds of verdicts.
const (
	VerdictRetry  = VerdictKind(supervise.Retry)  // later; spends an attempt, unless [Verdict.NotStarted]
	VerdictAck    = VerdictKind(supervise.Ack)    // done
	VerdictSnooze = VerdictKind(supervise.Snooze) // later, after the delay; spends no attempt
	VerdictDead   = VerdictKind(supervise.Dead)   // never: to the dead letters now
	VerdictDrop   = VerdictKind(supervise.Drop)   // never: acknowledged and counted
)

// String is retry, ack, snooze, dead or drop.
func (k VerdictKind) String() string {
	if k > VerdictDrop {
		k = VerdictRetry
	}
	return supervise.Kind(k).String()
}

// MarshalText is String.
func (k VerdictKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Verdict is what a handler said of an attempt. [VerdictOf] reads it out of the error that the handler returned.
type Verdict struct {
	Kind VerdictKind
	// Err says why; nil for a plain ack. It holds the text of the error only: at most 4 KiB, without control bytes.
	Err error
	// Delay is how long to wait before the next attempt. It always counts for a snooze, and for a retry when it is above zero;
	// otherwise the route's policy sets the delay.
	Delay time.Duration
	// Pause asks that the key, or the route, by the route's supervisor.retry_after, starts nothing until Delay is over.
	Pause bool
	// NotStarted: the work never began, so that a retry spends no attempt.
	NotStarted bool
	// NoAnswer: nothing answered, whatever the message.
	NoAnswer bool
	// StopChild: the child ends cleanly after this attempt.
	StopChild bool
	// Crashed: the child is gone, as after a panic.
	Crashed bool
	// FailRoute: the whole route stops, with Err as the reason.
	FailRoute bool
	// Suspend: the route is suspended, with Err as the reason.
	Suspend bool
}

// VerdictOf tells how relay understands what a handler returned. It is for tests of handlers, and for middleware that measures.
// An error without a verdict is a retry. Where err holds several verdicts, the first one that errors.As finds counts.
func VerdictOf(err error) Verdict {
	v, _ := usercode.VerdictOf(err)
	return Verdict{
		Kind: VerdictKind(v.Kind), Err: v.Err, Delay: v.Delay, Pause: v.Pause, NotStarted: v.NotStarted,
		NoAnswer: v.NoAnswer, StopChild: v.StopChild, Crashed: v.Crashed, FailRoute: v.FailRoute, Suspend: v.Suspend,
	}
}

// carry is an error that has the verdict.
func carry(v supervise.Verdict) error { return &usercode.Carrier{Verdict: v} }

// Dead says that the message can never be handled: it goes to the dead letters now.
func Dead(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Dead, Err: err})
}

// Drop says that nobody wants the message: it is acknowledged and counted as dropped.
func Drop(why string) error {
	return carry(supervise.Verdict{Kind: supervise.Drop, Err: errors.New(why)})
}

// Snooze asks for the message again after d, without spending an attempt. A d of zero or less means one second.
func Snooze(d time.Duration) error {
	if d <= 0 {
		d = time.Second
	}
	return carry(supervise.Verdict{Kind: supervise.Snooze, Delay: d})
}

// RetryIn is a failure that names its own delay instead of the policy's; zero or less leaves it to the policy, and more
// than an hour means an hour.
func RetryIn(d time.Duration, err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, Delay: d})
}

// RetryAfter is RetryIn that also pauses the route (or only the key, by the route's supervisor.retry_after) until d is
// over: what HTTP says with 429 or 503 and Retry-After.
func RetryAfter(d time.Duration, err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, Delay: d, Pause: true})
}

// NotStarted is a failure in which the work never began (no process could be forked, the request was never sent): it is
// retried like any other, but spends no attempt.
func NotStarted(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, NotStarted: true})
}

// NoAnswer is a failure in which what all messages of the route depend on did not answer: a connection was refused, a name does not
// resolve, a certificate is not valid. It spends an attempt, unlike [NotStarted]. A route that got no answer eight times in a row asks once in two
// seconds whether there is one, while after other failures it asks as many messages as it can, since one of them may be handled. So it is not for a
// fault that the message brings about, such as a host that it names.
func NoAnswer(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, NoAnswer: true})
}

// StopChild acknowledges the message and ends the child cleanly. What happens next is the route's supervisor.trigger.
func StopChild(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Ack, Err: err, StopChild: true})
}

// Crashed says that the child is gone, as after a panic, and err why: one that is a process has exited. The message counts one failed
// attempt, and the key gets a fresh child after its backoff.
func Crashed(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, Crashed: true})
}

// FailRoute stops the whole route with err as the reason: no message is to blame (the command is not there, the configuration
// is wrong). The message is given back and spends no attempt. The route says that it is stopped, and tries again by itself, after
// waits that grow as those of a route that tripped.
func FailRoute(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, NotStarted: true, FailRoute: true})
}

// Suspend is a failure that says that what answers wants no messages any more, as an endpoint does with the status 410: the route is
// suspended with err as the reason. It asks by itself, with a message now and then, and goes on when one succeeds, or when an
// operator resumes it.
func Suspend(err error) error {
	return carry(supervise.Verdict{Kind: supervise.Retry, Err: err, Suspend: true})
}
