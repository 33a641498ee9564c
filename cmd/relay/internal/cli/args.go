package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
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
