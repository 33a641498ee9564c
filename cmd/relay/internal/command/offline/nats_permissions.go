package offline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

func newNATS(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "nats", Short: "what the NATS server has to permit", Args: cli.Args(cli.KnownCommand),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newNATSPermissions(o))
	return c
}

func newNATSPermissions(o *cli.Options) *cobra.Command {
	roles := []string{access.Service}
	var format, user string
	var asJSON bool
	c := &cobra.Command{
		Use: "permissions", Short: "the subjects that relay, its operators and its publishers need, for a server that denies all others", Args: cli.Args(cobra.NoArgs),
		Long: `Permissions prints lists of subjects that are computed from the configuration. It does not talk to a server. The roles are:

  service    relay run
  operator   every command but run and pub
  viewer     status and events, and no message
  publisher  what the routes handle

Commands read their answers on inboxes. With --user NAME the list has those of the NATS user NAME: the name of nats.user, the name in a
creds file, or the public key of an nkey. Without it all users of a role may read theirs. In the template of a scoped signing
key NAME is {{name()}}.

Several of them, as in --for service,publisher, make one list. The format conf is a block for the configuration of nats-server; nsc is
a command. After a change of routes, print them again.`,
		Example: `  relay nats permissions > relay-service.conf
  relay nats permissions --for operator --user ann > ann.conf
  relay nats permissions --for publisher --format nsc`,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, r := range roles {
				if !slices.Contains(access.Roles(), r) {
					return fmt.Errorf("%w: --for %s: must be one of %s", cli.ErrUsage, r, strings.Join(access.Roles(), ", "))
				}
			}
			if format != "conf" && format != "nsc" {
				return fmt.Errorf("%w: --format %s: must be conf or nsc", cli.ErrUsage, format)
			}
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			p := access.For(cfg, user, roles...)
			out := c.OutOrStdout()
			switch {
			case asJSON:
				return cli.PrintJSON(out, p)
			case format == "nsc":
				printNSC(out, p, cmp.Or(user, cfg.Service+"-"+strings.Join(roles, "-")))
			default:
				printPermissions(out, p, roles)
			}
			return nil
		},
	}
	c.Flags().StringSliceVar(&roles, "for", roles, "roles of the list: "+strings.Join(access.Roles(), ", "))
	c.Flags().StringVar(&user, "user", "", "the NATS user of the list: nobody else can read its answers; not for --for service")
	c.Flags().StringVar(&format, "format", "conf", "conf for nats-server, nsc for a JWT")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// printPermissions prints a block that stands in a user of nats-server's configuration, by itself or by include.
func printPermissions(w io.Writer, p access.Permissions, roles []string) {
	fmt.Fprintf(w, "# for %s, by relay nats permissions; everything else is denied\n", strings.Join(roles, " and "))
	for _, n := range p.Notes {
		fmt.Fprintf(w, "# note: %s\n", n)
	}
	fmt.Fprintln(w, "permissions: {")
	if p.AllowResponses {
		fmt.Fprintln(w, "  allow_responses: true")
	}
	for _, part := range []struct {
		name     string
		subjects []string
	}{{"publish", p.Publish}, {"subscribe", p.Subscribe}} {
		fmt.Fprintf(w, "  %s: {allow: [\n", part.name)
		for _, s := range part.subjects {
			fmt.Fprintf(w, "    %q\n", s)
		}
		fmt.Fprintln(w, "  ]}")
	}
	fmt.Fprintln(w, "}")
}

// printNSC prints the command that makes a user with these permissions.
func printNSC(w io.Writer, p access.Permissions, user string) {
	for _, n := range p.Notes {
		fmt.Fprintf(w, "# note: %s\n", n)
	}
	fmt.Fprintf(w, "nsc add user --name %s", word(user))
	for _, s := range p.Publish {
		fmt.Fprintf(w, " \\\n  --allow-pub %s", quoted(s))
	}
	for _, s := range p.Subscribe {
		fmt.Fprintf(w, " \\\n  --allow-sub %s", quoted(s))
	}
	if p.AllowResponses {
		fmt.Fprint(w, " \\\n  --allow-pub-response")
	}
	fmt.Fprintln(w)
}

// word is a word for a shell, quoted if it must be.
func word(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_@") == "" {
		return s
	}
	return quoted(s)
}

// quoted is a word for a shell. Subjects of a configuration may hold anything that is printable.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
