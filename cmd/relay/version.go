package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = ""

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "print the version and those of its parts", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			v := versions{relayVersion(), natsserver.VERSION, nats.Version, runtime.Version()}
			if asJSON {
				return printJSON(c.OutOrStdout(), v)
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "relay %s (embedded nats-server %s, nats.go %s, %s)\n", v.Relay, v.Server, v.Client, v.Go)
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

func relayVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
