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

// Confirm asks before something large or destructive. Without a terminal --yes is required. The end of ctx is a no.
func Confirm(ctx context.Context, c *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
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
