package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// historyCommands are relay trace, events and audit.
func historyCommands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newTrace(o), newEvents(o), newAudit(o)}
}
