package usercode

import (
	"context"
	"errors"

	"github.com/relaymq/relay/internal/supervise"
)

// Carrier carries a verdict through the error that a handler returns.
type Carrier struct{ Verdict supervise.Verdict }

func (c *Carrier) Error() string {
	if c.Verdict.Err == nil {
		return c.Verdict.Kind.String()
	}
	return TextOf(c.Verdict.Err)
}

func (c *Carrier) Unwrap() error { return c.Verdict.Err }

// VerdictOf reads the verdict out of what a handler returned; an error without one is a retry. Its Err is the text and nothing else, so that no code of
// the handler runs later on. timedOut tells whether err says that a deadline was exceeded.
//
// An error whose methods panic is a failure like any other. One whose methods never return is a handler that hangs.
func VerdictOf(err error) (v supervise.Verdict, timedOut bool) {
	if err == nil {
		return supervise.Verdict{Kind: supervise.Ack}, false
	}
	v, timedOut = sorted(err)
	v.Err = Said(err) // with what the handler wrapped around it
	return v, timedOut
}

// sorted is VerdictOf without the text.
func sorted(err error) (v supervise.Verdict, timedOut bool) {
	if IsNil(err) {
		return v, false // the zero value is a retry
	}
	// Unwrap, Is or As panicked: err is what was found before.
	defer func() { _ = recover() }()
	var carrier *Carrier
	if errors.As(err, &carrier) && carrier != nil {
		v = carrier.Verdict
	}
	return v, errors.Is(err, context.DeadlineExceeded)
}
