package program

import (
	"fmt"
	"runtime"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/version"
)

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "print the version and those of its parts", Args: cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return cli.PrintJSON(c.OutOrStdout(), allVersions())
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), allVersions())
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

type versions struct {
	Relay  string `json:"relay"`
	Server string `json:"nats_server"`
	Client string `json:"nats_go"`
	Go     string `json:"go"`
}

func allVersions() versions {
	return versions{version.String(), natsserver.VERSION, nats.Version, runtime.Version()}
}

// String is the line of `relay version` and of `relay --version`.
func (v versions) String() string {
	return fmt.Sprintf("relay %s (embedded nats-server %s, nats.go %s, %s)", v.Relay, v.Server, v.Client, v.Go)
}
