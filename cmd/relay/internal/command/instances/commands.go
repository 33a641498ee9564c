package instances

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay status, pause, resume, handover and grid.
func Commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newStatus(o), newPause(o), newResume(o), newHandover(o), newGridCmd(o)}
}
