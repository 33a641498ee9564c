package run

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay run, and what asks a service that runs, or is about to, for what only it has. behind makes what its console shows.
func Commands(o *cli.Options, behind Behind) []*cobra.Command {
	return []*cobra.Command{newRun(o, behind), newReload(o), newPlan(o), newUI(o)}
}
