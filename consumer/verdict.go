package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// verdictError carries a verdict through the error that a handler returns.
type verdictError struct {
	verdict supervisor.Verdict
}

func (e *verdictError) Error() string {
	if e.verdict.Err == nil {
		return e.verdict.Kind.String()
	}
	return textOf(e.verdict.Err)
}

func (e *verdictError) Unwrap() error { return e.verdict.Err }

// Dead says that the message can never be handled: it goes to the dead letters now.
func Dead(err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Dead, Err: err}}
}

// Drop says that nobody wants the message: it is acknowledged and counted as dropped.
func Drop(why string) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Drop, Err: errors.New(why)}}
}

// Snooze asks for the message again after d, without spending an attempt. A d of zero or less means one second.
func Snooze(d time.Duration) error {
	if d <= 0 {
		d = time.Second
	}
	return &verdictError{supervisor.Verdict{Kind: supervisor.Snooze, Delay: d}}
}

// RetryIn is a failure that names its own delay instead of the policy's; zero or less leaves it to the policy, and more
// than an hour means an hour.
func RetryIn(d time.Duration, err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Retry, Err: err, Delay: d}}
}

// RetryAfter is RetryIn that also pauses the route (or only the key, by the route's supervisor.retry_after) until d is
// over: what HTTP says with 429 or 503 and Retry-After.
func RetryAfter(d time.Duration, err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Retry, Err: err, Delay: d, Pause: true}}
}

// NotStarted is a failure in which the work never began (no process could be forked, the request was never sent): it is
// retried like any other, but spends no attempt.
func NotStarted(err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Retry, Err: err, NotStarted: true}}
}

// StopChild acknowledges the message and ends the child cleanly. What happens next is the route's supervisor.trigger.
func StopChild(err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Ack, Err: err, StopChild: true}}
}

// Crashed says that the child is gone, as after a panic, and err why: one that is a process has exited. The message counts one failed
// attempt, and the key gets a fresh child after its backoff.
func Crashed(err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Retry, Err: err, Crashed: true}}
}

// FailRoute stops the whole route with err as the reason: no message is to blame (the command is not there, the configuration
// is wrong). The message is given back and spends no attempt. The route says that it is stopped, and tries again by itself, after
// waits that grow as those of a route that tripped.
func FailRoute(err error) error {
	return &verdictError{supervisor.Verdict{Kind: supervisor.Retry, Err: err, NotStarted: true, FailRoute: true}}
}

// verdictOf reads the verdict out of what a handler returned. Its Err is the text and nothing else, so that no code of the
// handler runs later on. timedOut tells whether err says that a deadline was exceeded.
//
// An error whose methods panic is a failure like any other. One whose methods never return is a handler that hangs.
func verdictOf(err error) (v supervisor.Verdict, timedOut bool) {
	if err == nil {
		return supervisor.Verdict{Kind: supervisor.Ack}, false
	}
	v, timedOut = sorted(err)
	v.Err = said(err) // with what the handler wrapped around it
	return v, timedOut
}

// sorted is verdictOf without the text.
func sorted(err error) (v supervisor.Verdict, timedOut bool) {
	if isNil(err) {
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
