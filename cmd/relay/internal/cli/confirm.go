package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Consent is what a command does not ask for when it is called with --yes.
type Consent struct{ given bool }

// Flag has the command take --yes.
func (a *Consent) Flag(c *cobra.Command, usage string) {
	c.Flags().BoolVarP(&a.given, "yes", "y", false, usage)
}

// Confirm is the function of that name, unless consent is given already.
func (a Consent) Confirm(ctx context.Context, c *cobra.Command, question string) error {
	if a.given {
		return nil
	}
	return Confirm(ctx, c, question)
}

// Confirm asks before something large or destructive. Without a terminal --yes is required. The end of ctx is a no.
func Confirm(ctx context.Context, c *cobra.Command, question string) error {
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return fmt.Errorf("%w: %s: there is no terminal to ask on, so --yes is required", ErrUsage, question)
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a read from a terminal does not end with ctx; this goroutine ends with the program
		var a string
		_, _ = fmt.Fscanln(in, &a)
		answer <- strings.ToLower(a)
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(c.ErrOrStderr())
	}
	return errors.New("nothing was done")
}
