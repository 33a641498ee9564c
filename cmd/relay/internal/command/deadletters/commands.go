package deadletters

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay dlq and relay replay.
func Commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newDLQ(o), newReplay(o)}
}
