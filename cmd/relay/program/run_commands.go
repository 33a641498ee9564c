package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// runCommands are relay run, and what asks a service that runs, or is about to, for what only it has. behind makes what its console shows.
func runCommands(o *cli.Options, behind Behind) []*cobra.Command {
	return []*cobra.Command{newRun(o, behind), newReload(o), newPlan(o), newUI(o)}
}
