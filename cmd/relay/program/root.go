package program

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/command/deadletters"
	"github.com/relaymq/relay/cmd/relay/internal/command/history"
	"github.com/relaymq/relay/cmd/relay/internal/command/instances"
	"github.com/relaymq/relay/cmd/relay/internal/command/offline"
	"github.com/relaymq/relay/cmd/relay/internal/command/publish"
	"github.com/relaymq/relay/cmd/relay/internal/command/retries"
	"github.com/relaymq/relay/cmd/relay/internal/command/run"
	"github.com/relaymq/relay/cmd/relay/internal/command/schedules"
	"github.com/relaymq/relay/cmd/relay/internal/command/webhook"
	"github.com/relaymq/relay/cmd/relay/internal/hangup"
	"github.com/relaymq/relay/consumer/handler"
)

func newRoot(kinds ...handler.Kind) *cobra.Command {
	o := cli.NewOptions(kinds)
	root := &cobra.Command{
		Use:   "relay",
		Short: "relay supervises the consumers of NATS JetStream streams",
		Long: `relay delivers every message of its routes to a handler, backs off when the handler fails, never loses a
message, and keeps what could not be handled in a dead-letter queue from which you replay it.`,
		Version:      allVersions().String(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if c.Name() != "run" || c.Parent() != c.Root() { // run reads its configuration again
				hangup.Release()
			}
			return cli.NoEmptyFlag(c)
		},
		Args: cli.Args(cli.KnownCommand), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cli.StandardOutput(root)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w (see %s --help)", cli.ErrUsage, err, c.CommandPath())
	})
	o.Flags(root)
	for _, family := range [][]*cobra.Command{
		run.Commands(o, newBehindConsole), deadletters.Commands(o), retries.Commands(o), instances.Commands(o), history.Commands(o), offline.Commands(o), publish.Commands(o),
		{schedules.Command(o), webhook.Command(), newVersion()},
	} {
		root.AddCommand(family...)
	}
	cli.CompleteValues(root, o)
	return root
}
