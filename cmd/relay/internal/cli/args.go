package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Args is a check of arguments with an error that is a usage error.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		if err := check(c, a); err != nil {
			return fmt.Errorf("%w: %w (see %s --help)", ErrUsage, err, c.CommandPath())
		}
		return nil
	}
}

// NoEmptyFlag refuses a flag of the command itself that was given an empty text, as a script does whose variable is not set: without its value
// --route would choose all routes, and --at would publish now.
func NoEmptyFlag(c *cobra.Command) (err error) {
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if err == nil && f.Changed && f.Value.Type() == "string" && f.Value.String() == "" {
			err = fmt.Errorf("%w: --%s is empty: give it a value, or leave it out", ErrUsage, f.Name)
		}
	})
	return err
}

// KnownCommand refuses what is left when no subcommand was found. Without it cobra does so itself, with an error that does
// not show to be one of usage.
func KnownCommand(c *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(a[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q, did you mean %s?", a[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q", a[0])
}
