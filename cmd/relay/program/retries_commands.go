package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// retryCommands are relay retries and relay orphans.
func retryCommands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newRetries(o), newOrphans(o)}
}
