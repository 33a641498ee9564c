package history

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay trace, events and audit.
func Commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newTrace(o), newEvents(o), newAudit(o)}
}
