package offline

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay lint, explain and nats.
func Commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newLint(o), newExplain(o), newNATS(o)}
}
