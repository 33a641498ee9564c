package retries

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay retries and relay orphans.
func Commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newRetries(o), newOrphans(o)}
}
