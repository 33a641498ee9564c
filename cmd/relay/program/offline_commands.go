package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// offlineCommands are relay lint, explain and nats.
func offlineCommands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newLint(o), newExplain(o), newNATS(o)}
}
