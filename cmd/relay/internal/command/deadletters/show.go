package deadletters

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/plain"
)

func newDLQShow(o *cli.Options) *cobra.Command {
	var raw, asJSON, original bool
	c := &cobra.Command{
		Use: "show NUMBER", Short: "show one dead letter: where it is from, why it is here, its body", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Show prints one dead letter. A body that is JSON is indented unless that would make it very long, other text is printed as
it is, and anything else as a hex dump. Characters that could act on the terminal are escaped, unless --raw is given. --original prints the first body of a message that was edited for a replay (relay dlq replay --edit).`,
		RunE: func(c *cobra.Command, a []string) error {
			seq, err := number(a[0])
			if err != nil {
				return err
			}
			return o.WithDeadLetters(c, func(ctx context.Context, _ *cli.Client, store *dlq.Store) error {
				e, err := store.Get(ctx, seq)
				if err != nil {
					return entryError(seq, err)
				}
				if original {
					if e.Edited == "" {
						return fmt.Errorf("dead letter %d was never edited", seq)
					}
					if e.Header, e.Data, err = store.Original(ctx, e.Edited); err != nil {
						return err
					}
					e.Size = len(e.Data)
				}
				switch {
				case raw:
					_, err = c.OutOrStdout().Write(e.Data)
					return err
				case asJSON:
					return cli.PrintJSON(c.OutOrStdout(), e)
				}
				showEntry(c.OutOrStdout(), e)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&raw, "raw", false, "print only the body, byte for byte")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&original, "original", false, "print the body that the message had before it was edited")
	return c
}

// showEntry prints an entry for a person.
func showEntry(w io.Writer, e dlq.Entry) {
	rows := [][]string{
		{"dead letter", strconv.FormatUint(e.StoredSequence, 10) + ", stored " + cli.When(e.StoredTime) + " by " + cli.Printable(e.Instance)},
		{"reason", cli.Printable(string(e.Reason))},
		{"error", cli.Printable(e.LastError)},
		{"route", cli.Printable(e.Route)},
		{"subject", cli.Printable(e.Subject)},
		{"origin", fmt.Sprintf("stream %s, sequence %d, published %s, consumer %s", cli.Printable(e.Stream), e.Sequence, cli.When(e.Time), cli.Printable(e.Consumer))},
		{"attempts", fmt.Sprintf("%d, first failure %s, last %s", e.Attempts, cli.When(e.FirstFailure), cli.When(e.LastFailure))},
	}
	if e.Replay > 0 {
		rows = append(rows, []string{"replayed", fmt.Sprintf("%d %s, last by job %s", e.Replay, cli.Plural(e.Replay, "time"), cli.Or(cli.Printable(e.Job), "-"))})
	}
	for _, p := range e.Past {
		rows = append(rows, []string{"before", fmt.Sprintf("%s, %s after %d %s: %s", cli.When(p.Time), cli.Printable(p.Reason), p.Attempts,
			cli.Plural(p.Attempts, "attempt"), cli.Printable(p.Error))})
	}
	if e.Edited != "" {
		rows = append(rows, []string{"edited", "by job " + cli.Printable(e.Edited) + "; the first body: relay dlq show " + strconv.FormatUint(e.StoredSequence, 10) + " --original"})
	}
	for _, name := range slices.Sorted(maps.Keys(e.Header)) {
		for _, v := range e.Header[name] {
			rows = append(rows, []string{"header", cli.Printable(name) + ": " + cli.Printable(v)})
		}
	}
	cli.Fields(w, rows)
	if len(e.Stack) > 0 {
		fmt.Fprintf(w, "\nstack\n")
		for line := range strings.Lines(string(e.Stack)) {
			fmt.Fprintln(w, "  "+plain.Lines(strings.TrimRight(line, "\n")))
		}
	}
	fmt.Fprintf(w, "\nbody, %d bytes\n%s\n", e.Size, cli.BodyText(e.Data))
}
