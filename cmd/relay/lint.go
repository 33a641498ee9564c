package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/config"
)

func newLint(o *options) *cobra.Command {
	var schema, asJSON bool
	c := &cobra.Command{
		Use: "lint", Short: "check a configuration, all faults at once", Args: args(cobra.NoArgs),
		Long: `Lint reads the configuration as run would, with environment and --set, and says everything that is wrong with it.
It does not talk to a server. With --schema it prints a JSON Schema of the file, for editors.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if schema {
				s, err := config.Schema()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), string(s))
				return err
			}
			cfg, err := o.load()
			if asJSON {
				return lintJSON(c, err)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "ok: %d routes\n", len(cfg.Routes))
			return err
		},
	}
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration file")
	c.Flags().BoolVar(&asJSON, "json", false, "print the faults as JSON")
	return c
}

// lintJSON prints what is wrong, as a list that is empty when nothing is.
func lintJSON(c *cobra.Command, err error) error {
	type fault struct {
		File    string `json:"file,omitempty"`
		Line    int    `json:"line,omitempty"`
		Key     string `json:"key,omitempty"`
		Message string `json:"message"`
	}
	list := []fault{}
	var faults config.Faults
	switch {
	case errors.As(err, &faults):
		for _, f := range faults {
			list = append(list, fault{f.File, f.Line, f.Key, f.Msg})
		}
	case err != nil:
		return err
	}
	if err := printJSON(c.OutOrStdout(), list); err != nil || len(list) == 0 {
		return err
	}
	return fmt.Errorf("%w%w", errSaid, faults)
}
