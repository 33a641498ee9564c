package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// letterCommands are relay dlq and relay replay.
func letterCommands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newDLQ(o), newReplay(o)}
}
