// Package program is the program relay: [Main] is all of it, so that a program of your own can be relay with handlers of
// your own in it.
//
// Subcommands are packages under cmd/relay/internal/command, by families; this one puts them together, and what they have behind the
// console. Each ends in an error; Main turns errors into messages and exit codes:
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

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/plain"
)

// Main is the program with its arguments from os.Args. Its configuration takes the kinds of handler of the package stock,
// and those given. It does not return. It panics when two kinds have the same name.
func Main(kinds ...handler.Kind) {
	syscall.Umask(0o077) // the store holds other people's messages
	root := newRoot(kinds...)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		err = cli.Unwritten(root)
	}
	if err != nil && !errors.Is(err, cli.ErrSaid) {
		fmt.Fprintln(os.Stderr, "relay: "+plain.Lines(err.Error())) // which may quote anybody
	}
	os.Exit(cli.ExitCode(err))
}
