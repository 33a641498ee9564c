package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// OrderFlags are those of every order that an operator gives.
type OrderFlags struct {
	Why, As string
	JSON    bool
}

// Flags adds them to a command.
func (a *OrderFlags) Flags(c *cobra.Command) {
	c.Flags().StringVar(&a.Why, "why", "", "a reason, shown in the log and by status")
	c.Flags().StringVar(&a.As, "as", "", "who you are, for the log and status (default user@host)")
	c.Flags().BoolVar(&a.JSON, "json", false, "print JSON")
}

// ActTimeout bounds all that a command does to have an order followed.
const ActTimeout = 40 * time.Second
