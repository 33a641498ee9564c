package program

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// instanceCommands are relay status, pause, resume, handover and grid.
func instanceCommands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newStatus(o), newPause(o), newResume(o), newHandover(o), newGridCmd(o)}
}
