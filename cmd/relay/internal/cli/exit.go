package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
)

// Exit codes, beside 0: see program.Main.
const (
	ExitFailed    = 1
	ExitUsage     = 2
	ExitForced    = 3
	ExitEscalated = 4
)

var (
	// ErrSaid is an error that was told already.
	ErrSaid = errors.New("")
	// ErrUsage is a wrong call.
	ErrUsage = errors.New("usage")
)

// ExitCode is that of the process which ends with err.
func ExitCode(err error) int {
	var faults config.Faults
	var setup *consumer.SetupError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, consumer.ErrForcedDrain):
		return ExitForced
	case errors.Is(err, consumer.ErrEscalated):
		return ExitEscalated
	case errors.As(err, &faults), errors.As(err, &setup), errors.Is(err, ErrUsage), errors.Is(err, errCannotStart), errors.Is(err, ErrInvalid):
		return ExitUsage
	}
	return ExitFailed
}

// errCannotStart is anything that has to be mended before relay can run.
var errCannotStart = errors.New("cannot start")

// CannotStart makes err one that has to be mended before relay can run; a cancellation is none.
func CannotStart(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", errCannotStart, err)
}

// ErrInvalid is a configuration that an instance found to be at fault.
var ErrInvalid = errors.New("the configuration of an instance is invalid")
