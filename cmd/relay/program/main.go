// Package program is the program relay: [Main] is all of it, so that a program of your own can be relay with handlers of
// your own in it.
//
// Each subcommand has a file of its own, which ends in an error; Main turns errors into messages and exit codes:
//
//	0  done
//	1  failed
//	2  usage or configuration, or something that has to be mended before relay can run
//	3  the drain was forced: handlers were interrupted
//	4  escalation: a key gave up and its route's on_give_up is exit
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	_ "time/tzdata" // of schedules, where the system has none

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/plain"
)

const (
	exitFailed    = 1
	exitUsage     = 2
	exitForced    = 3
	exitEscalated = 4
)

// Main is the program with its arguments from os.Args. Its configuration takes the kinds of handler of the package stock,
// and those given. It does not return. It panics when two kinds have the same name.
func Main(kinds ...handler.Kind) {
	syscall.Umask(0o077) // the store holds other people's messages
	err := newRoot(kinds...).ExecuteContext(context.Background())
	if err != nil && !errors.Is(err, errSaid) {
		fmt.Fprintln(os.Stderr, "relay: "+plain.Lines(err.Error())) // which may quote anybody
	}
	os.Exit(exitCode(err))
}

var (
	// errSaid is an error that was told already.
	errSaid = errors.New("")
	// errUsage is a wrong call.
	errUsage = errors.New("usage")
)

func exitCode(err error) int {
	var faults config.Faults
	var setup *consumer.SetupError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, consumer.ErrForcedDrain):
		return exitForced
	case errors.Is(err, consumer.ErrEscalated):
		return exitEscalated
	case errors.As(err, &faults), errors.As(err, &setup), errors.Is(err, errUsage), errors.Is(err, errCannotStart), errors.Is(err, errInvalid):
		return exitUsage
	}
	return exitFailed
}
