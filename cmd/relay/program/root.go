package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/hangup"
	"github.com/relaymq/relay/consumer/handler"
)

// options are the flags that every command takes.
type options struct {
	file   string
	set    []string
	server string
	nats   string // name of a context
	creds  string
	env    []string       // nil: that of the process
	kinds  []handler.Kind // beside the stock ones
}

func newRoot(kinds ...handler.Kind) *cobra.Command {
	o := &options{kinds: kinds}
	root := &cobra.Command{
		Use:   "relay",
		Short: "relay supervises the consumers of NATS JetStream streams",
		Long: `relay delivers every message of its routes to a handler, backs off when the handler fails, never loses a
message, and keeps what could not be handled in a dead-letter queue from which you replay it.`,
		Version:      allVersions().String(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRun: func(c *cobra.Command, _ []string) {
			if c.Name() != "run" || c.Parent() != c.Root() { // run reads its configuration again
				hangup.Release()
			}
		},
		Args: args(knownCommand), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	out := &screen{File: os.Stdout}
	root.SetOut(out)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w (see %s --help)", errUsage, err, c.CommandPath())
	})
	root.AddCommand(newReload(o))
	f := root.PersistentFlags()
	f.StringVarP(&o.file, "config", "c", "", "configuration file (default relay.yaml if there is one)")
	f.StringArrayVar(&o.set, "set", nil, "set a key of the configuration: --set routes.billing.concurrency=8")
	f.StringVar(&o.server, "server", "", "NATS URL instead of the configuration's")
	f.StringVar(&o.nats, "context", "", "context of the nats command instead of the configuration's server; -: the selected one")
	f.StringVar(&o.creds, "creds", "", "NATS credentials file instead of the configuration's")
	f.BoolVar(&out.wide, "wide", false, "print tables whole, wider than the terminal (always so in a file or a pipe)")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
	_ = root.MarkPersistentFlagFilename("creds", "creds")
	root.AddCommand(newRun(o), newLint(o), newPlan(o), newPub(o), newExplain(o), newDLQ(o), newReplay(o), newRetries(o), newOrphans(o), newStatus(o), newAudit(o), newTrace(o), newUI(o), newEvents(o), newPause(o), newResume(o), newGridCmd(o), newHandover(o), newNATS(o), newVersion())
	root.AddCommand(newWebhook())
	root.AddCommand(newCall(o))
	root.AddCommand(newSchedule(o))
	completeValues(root, o)
	return root
}

// defaultFile is read when no file is named.
const defaultFile = "relay.yaml"

// load reads the configuration of the service. Without a file it is the defaults, environment and flags.
func (o *options) load() (*config.Config, error) { return o.read(false) }

func (o *options) read(client bool) (*config.Config, error) {
	from := o.from(client)
	cfg, err := config.Load(from)
	if err != nil && from.File == "" {
		return nil, fmt.Errorf("%w\n(no configuration file: name one with -c, or call from a folder with a %s)", err, defaultFile)
	}
	return cfg, err
}

// from is where the configuration comes from.
func (o *options) from(client bool) config.Options {
	file := o.file
	if file == "" {
		if _, err := os.Stat(defaultFile); err == nil {
			file = defaultFile
		}
	}
	set := o.set
	if o.server != "" {
		set = append(set, "nats.url="+o.server)
	}
	if o.creds != "" {
		set = append(set, "nats.creds="+o.creds)
	}
	env := o.env
	if env == nil {
		env = os.Environ()
	}
	return config.Options{File: file, Set: set, Env: env, Context: o.nats, Client: client, Kinds: o.kinds}
}

// args is a check of arguments with an error that is a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		if err := check(c, a); err != nil {
			return fmt.Errorf("%w: %w (see %s --help)", errUsage, err, c.CommandPath())
		}
		return nil
	}
}

// knownCommand refuses what is left when no subcommand was found. Without it cobra does so itself, with an error that does
// not show to be one of usage.
func knownCommand(c *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(a[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q, did you mean %s?", a[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q", a[0])
}

// errCannotStart is anything that has to be mended before relay can run.
var errCannotStart = errors.New("cannot start")

func cannotStart(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", errCannotStart, err)
}
