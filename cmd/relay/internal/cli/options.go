package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer/handler"
)

// Options are the flags that every command takes.
type Options struct {
	File   string
	set    []string
	server string
	nats   string // name of a context
	creds  string
	Env    []string       // nil: that of the process
	Kinds  []handler.Kind // beside the stock ones
}

// NewOptions are those of a program whose configuration takes these kinds of handler, too.
func NewOptions(kinds []handler.Kind) *Options { return &Options{Kinds: kinds} }

// Flags has the root command take them.
func (o *Options) Flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVarP(&o.File, "config", "c", "", "configuration file (default relay.yaml if there is one)")
	f.StringArrayVar(&o.set, "set", nil, "set a key of the configuration: --set routes.billing.concurrency=8")
	f.StringVar(&o.server, "server", "", "NATS URL instead of the configuration's")
	f.StringVar(&o.nats, "context", "", "context of the nats command instead of the configuration's server; -: the selected context")
	f.StringVar(&o.creds, "creds", "", "NATS credentials file instead of the configuration's")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
	_ = root.MarkPersistentFlagFilename("creds", "creds")
}

// defaultFile is read when no file is named.
const defaultFile = "relay.yaml"

// Load reads the configuration of the service. Without a file it is the defaults, environment and flags.
func (o *Options) Load() (*config.Config, error) { return load(o.from()) }

// LoadClient is Load for a command that only talks to the server: the configuration needs no routes.
func (o *Options) LoadClient() (*config.Config, error) { return load(o.FromClient()) }

// FromClient is where LoadClient has the configuration from.
func (o *Options) FromClient() config.Options {
	from := o.from()
	from.Client = true
	return from
}

func load(from config.Options) (*config.Config, error) {
	cfg, err := config.Load(from)
	if err != nil && from.File == "" {
		return nil, fmt.Errorf("%w\n(no configuration file: name one with -c, or call from a folder with a %s)", err, defaultFile)
	}
	return cfg, err
}

// from is where the configuration comes from.
func (o *Options) from() config.Options {
	file := o.File
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
	env := o.Env
	if env == nil {
		env = os.Environ()
	}
	return config.Options{File: file, Set: set, Env: env, Context: o.nats, Kinds: o.Kinds}
}
