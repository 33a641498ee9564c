package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/natsd"
	"github.com/relaymq/relay/consumer"
)

func newNATSDowngrade(o *options) *cobra.Command {
	var yes, dry, asJSON bool
	c := &cobra.Command{
		Use: "downgrade", Short: "prepare what is on the server for the first version of relay", Args: args(cobra.NoArgs),
		Long: `Downgrade changes the durables that relay made since its first version, so that the first version can run again, and says what waits that
this one does not know. Messages keep their attempts and their time. All instances have to be stopped. It may be interrupted and run again.
With the embedded server it starts that for the time of the command. Between other versions nothing has to be prepared: docs/upgrade.md.`,
		Example: `  relay nats downgrade --dry-run
  relay nats downgrade`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withServer(c, func(ctx context.Context, cl *client) error {
				done, err := consumer.Downgrade(ctx, cl.js, cl.cfg.Service, true)
				if err != nil {
					return err
				}
				if !dry {
					if err := confirm(ctx, c, yes, fmt.Sprintf("Change %d durables of service %s for the first version of relay?", len(done.Durables)+len(done.Unpinned), printable(cl.cfg.Service))); err != nil {
						return err
					}
					if done, err = consumer.Downgrade(ctx, cl.js, cl.cfg.Service, false); err != nil {
						return fmt.Errorf("not all is prepared; run it again: %w", err)
					}
				}
				if asJSON {
					return printJSON(c.OutOrStdout(), done)
				}
				printDowngraded(c.OutOrStdout(), done, dry)
				return nil
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&dry, "dry-run", false, "say what would be done, and change nothing")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printDowngraded(w io.Writer, done consumer.Downgraded, dry bool) {
	would := ""
	if dry {
		would = "would be "
	}
	if n := len(done.Durables); n > 0 {
		fmt.Fprintf(w, "%d %s on the retry stream %sremoved, for those of the first version: %s\n", n, plural(n, "durable"), would, printable(strings.Join(done.Durables, ", ")))
	}
	if done.Parked > 0 {
		fmt.Fprintf(w, "%d %s %sparked, with their attempts and their time\n", done.Parked, plural(done.Parked, "message"), would)
	}
	if n := len(done.Unpinned); n > 0 {
		fmt.Fprintf(w, "%d %s %sgiven to all instances: %s. The first version has no instances: one: run one instance only where that matters\n", n, plural(n, "durable"), would, printable(strings.Join(done.Unpinned, ", ")))
	}
	for _, left := range done.Left {
		fmt.Fprintf(w, "left until a newer version runs: %s\n", printable(left))
	}
	if !dry {
		fmt.Fprintln(w, "the first version can run now; if it says that a durable has other settings, start it with --adopt once")
	}
}

// withServer is withClient, also when the server is embedded and relay does not run.
func (o *options) withServer(c *cobra.Command, f func(context.Context, *client) error) error {
	cfg, err := o.read(true)
	if err != nil {
		return err
	}
	if len(cfg.NATS.URL) > 0 {
		return o.withClient(c, f)
	}
	ctx, log := c.Context(), slog.New(slog.DiscardHandler)
	e := cfg.NATS.Embedded
	srv, err := natsd.Start(ctx, natsd.Config{StoreDir: e.StoreDir, Sync: e.Sync, Logger: log})
	if err != nil {
		return fmt.Errorf("the embedded server cannot be started for this command (relay must not run): %w", err)
	}
	conn, err := connect(ctx, cfg, access.Service, srv, log)
	if err != nil {
		srv.Shutdown()
		return err
	}
	js, err := newJetStream(conn.Conn, cfg)
	if err == nil {
		err = f(ctx, &client{cfg: cfg, conn: conn, js: js, user: func() string { return "" }})
	}
	conn.Close()
	srv.Shutdown()
	return errors.Join(err, srv.Err())
}
