package offline

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
)

func newLint(o *cli.Options) *cobra.Command {
	var schema, asJSON bool
	c := &cobra.Command{
		Use: "lint", Short: "check a configuration, all faults at once", Args: cli.Args(cobra.NoArgs),
		Long: `Lint reads the configuration as run would, with environment and --set, and prints every fault.
It does not talk to a server. Warnings name what is valid and probably not meant. Notes name the variables and flags that changed
the file. Neither changes the exit code. With --schema it prints a JSON Schema of the file, for editors.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if schema {
				s, err := config.Schema(o.Kinds...)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), string(s))
				return err
			}
			cfg, err := o.Load()
			if asJSON {
				return lintJSON(c, cfg, err)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "ok: %d %s\n", len(cfg.Routes), cli.Plural(len(cfg.Routes), "route"))
			for _, sc := range cfg.Schedules {
				next, err := sc.Next(time.Now())
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "schedule %s: next run %s\n", sc.Name, cli.InZone(sc, next))
			}
			if len(cfg.Source.Overrides) > 0 {
				fmt.Fprintf(c.OutOrStdout(), "changed by %s\n", strings.Join(cfg.Source.Overrides, ", "))
			}
			for _, w := range cfg.Source.Warnings {
				fmt.Fprintln(c.OutOrStdout(), w)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration file")
	c.Flags().BoolVar(&asJSON, "json", false, "print the faults as JSON")
	return c
}

// lintJSON prints what is wrong, as a list that is empty when nothing is.
func lintJSON(c *cobra.Command, cfg *config.Config, err error) error {
	type fault struct {
		Severity string `json:"severity"` // error, warning or note
		File     string `json:"file,omitempty"`
		Line     int    `json:"line,omitempty"`
		Key      string `json:"key,omitempty"`
		Message  string `json:"message"`
	}
	list := []fault{}
	var faults config.Faults
	switch {
	case errors.As(err, &faults):
		for _, f := range faults {
			list = append(list, fault{"error", f.File, f.Line, f.Key, f.Msg})
		}
	case err != nil:
		return err
	default:
		for _, w := range cfg.Source.Warnings {
			severity := "warning"
			if w.Note {
				severity = "note"
			}
			list = append(list, fault{severity, w.File, w.Line, w.Key, w.Msg})
		}
	}
	if err := cli.PrintJSON(c.OutOrStdout(), list); err != nil || len(faults) == 0 {
		return err
	}
	return fmt.Errorf("%w%w", cli.ErrSaid, faults)
}
