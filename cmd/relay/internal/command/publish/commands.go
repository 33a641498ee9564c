package publish

import (
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// Commands are relay pub and call.
func Commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{newPub(o), newCall(o)}
}
