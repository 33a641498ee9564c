package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/supervise"
)

// VerdictKind is the kind of a verdict. The zero value is VerdictRetry, so that a verdict that was not understood loses nothing.
type VerdictKind uint8

// The kinds of verdicts.
const (
	VerdictRetry  VerdictKind = iota // later; spends an attempt, unless [Verdict.NotStarted]
	VerdictAck                       // done
	VerdictSnooze                    // later, after the delay; spends no attempt
	VerdictDead                      // never: to the dead letters now
	VerdictDrop                      // never: acknowledged and counted
)

var verdictKinds = [...]supervise.Kind{supervise.Retry, supervise.Ack, supervise.Snooze, supervise.Dead, supervise.Drop}

// String is retry, ack, snooze, dead or drop.
func (k VerdictKind) String() string { return k.inside().String() }

// MarshalText is String.
func (k VerdictKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// inside is the kind as the supervisor has it.
func (k VerdictKind) inside() supervise.Kind {
	if int(k) < len(verdictKinds) {
		return verdictKinds[k]
	}
	return supervise.Retry
}

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
	v, _ := verdictAs(err)
	return v
}

// inside is the verdict as the supervisor has it.
func (v Verdict) inside() supervise.Verdict {
	return supervise.Verdict{
		Kind: v.Kind.inside(), Err: v.Err, Delay: v.Delay, Pause: v.Pause, NotStarted: v.NotStarted,
		NoAnswer: v.NoAnswer, StopChild: v.StopChild, Crashed: v.Crashed, FailRoute: v.FailRoute, Suspend: v.Suspend,
	}
}

// verdictError carries a verdict through the error that a handler returns.
type verdictError struct {
	verdict Verdict
}

func (e *verdictError) Error() string {
	if e.verdict.Err == nil {
		return e.verdict.Kind.String()
	}
	return usercode.TextOf(e.verdict.Err)
}

func (e *verdictError) Unwrap() error { return e.verdict.Err }

// Dead says that the message can never be handled: it goes to the dead letters now.
func Dead(err error) error {
	return &verdictError{Verdict{Kind: VerdictDead, Err: err}}
}

// Drop says that nobody wants the message: it is acknowledged and counted as dropped.
func Drop(why string) error {
	return &verdictError{Verdict{Kind: VerdictDrop, Err: errors.New(why)}}
}

// Snooze asks for the message again after d, without spending an attempt. A d of zero or less means one second.
func Snooze(d time.Duration) error {
	if d <= 0 {
		d = time.Second
	}
	return &verdictError{Verdict{Kind: VerdictSnooze, Delay: d}}
}

// RetryIn is a failure that names its own delay instead of the policy's; zero or less leaves it to the policy, and more
// than an hour means an hour.
func RetryIn(d time.Duration, err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, Delay: d}}
}

// RetryAfter is RetryIn that also pauses the route (or only the key, by the route's supervisor.retry_after) until d is
// over: what HTTP says with 429 or 503 and Retry-After.
func RetryAfter(d time.Duration, err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, Delay: d, Pause: true}}
}

// NotStarted is a failure in which the work never began (no process could be forked, the request was never sent): it is
// retried like any other, but spends no attempt.
func NotStarted(err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, NotStarted: true}}
}

// NoAnswer is a failure in which what all messages of the route depend on did not answer: a connection was refused, a name does not
// resolve, a certificate is not valid. It spends an attempt, unlike [NotStarted]. A route that got no answer eight times in a row asks once in two
// seconds whether there is one, while after other failures it asks as many messages as it can, since one of them may be handled. So it is not for a
// fault that the message brings about, such as a host that it names.
func NoAnswer(err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, NoAnswer: true}}
}

// StopChild acknowledges the message and ends the child cleanly. What happens next is the route's supervisor.trigger.
func StopChild(err error) error {
	return &verdictError{Verdict{Kind: VerdictAck, Err: err, StopChild: true}}
}

// Crashed says that the child is gone, as after a panic, and err why: one that is a process has exited. The message counts one failed
// attempt, and the key gets a fresh child after its backoff.
func Crashed(err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, Crashed: true}}
}

// FailRoute stops the whole route with err as the reason: no message is to blame (the command is not there, the configuration
// is wrong). The message is given back and spends no attempt. The route says that it is stopped, and tries again by itself, after
// waits that grow as those of a route that tripped.
func FailRoute(err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, NotStarted: true, FailRoute: true}}
}

// Suspend is a failure that says that what answers wants no messages any more, as an endpoint does with the status 410: the route is
// suspended with err as the reason. It asks by itself, with a message now and then, and goes on when one succeeds, or when an
// operator resumes it.
func Suspend(err error) error {
	return &verdictError{Verdict{Kind: VerdictRetry, Err: err, Suspend: true}}
}

// verdictOf is [VerdictOf] for the supervisor. timedOut tells whether err says that a deadline was exceeded.
func verdictOf(err error) (v supervise.Verdict, timedOut bool) {
	own, timedOut := verdictAs(err)
	return own.inside(), timedOut
}

// verdictAs reads the verdict out of what a handler returned. Its Err is the text and nothing else, so that no code of the
// handler runs later on.
//
// An error whose methods panic is a failure like any other. One whose methods never return is a handler that hangs.
func verdictAs(err error) (v Verdict, timedOut bool) {
	if err == nil {
		return Verdict{Kind: VerdictAck}, false
	}
	v, timedOut = sorted(err)
	v.Err = usercode.Said(err) // with what the handler wrapped around it
	return v, timedOut
}

// sorted is verdictAs without the text.
func sorted(err error) (v Verdict, timedOut bool) {
	if usercode.IsNil(err) {
		return v, false // the zero value is a retry
	}
	// Unwrap, Is or As panicked: err is what was found before.
	defer func() { _ = recover() }()
	var carrier *verdictError
	if errors.As(err, &carrier) && carrier != nil {
		v = carrier.verdict
	}
	return v, errors.Is(err, context.DeadlineExceeded)
}
