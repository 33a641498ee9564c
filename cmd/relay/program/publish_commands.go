package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// publishCommands are relay pub and call.
func publishCommands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newPub(o), newCall(o)}
}
