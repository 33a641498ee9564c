package retries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/waiting"
)

func newRetries(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "retries", Short: "look at the messages that failed and wait for their retry, hasten and discard them",
		Long: `A message that failed waits in one of two places: in its durable, as most do, or parked in the retry stream, as long waits
and large numbers do. Both are listed; parked ones can be made due now, or become dead letters.

A message that waits in its durable comes when it is due: only the instances can end its wait. relay resume ROUTE ends the waits of a
route and of its keys.`,
		Args: cli.Args(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRetriesList(o), newRetriesShow(o), newRetriesNow(o), newRetriesDiscard(o))
	return c
}

func newRetriesList(o *cli.Options) *cobra.Command {
	var route string
	var limit int
	var asJSON, all bool
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list what waits for its retry", Args: cli.Args(cobra.NoArgs),
		Example: "  relay retries ls --route billing\n  relay retries ls --all --json",
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("%w: --limit %d: must be above 0", cli.ErrUsage, limit)
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				r, err := waiting.Open(ctx, cl)
				if err != nil {
					return err
				}
				if all {
					limit = math.MaxInt
				}
				if asJSON {
					n, _, err := eachRetry(ctx, r, route, limit, func(m waiting.Message) error { return cli.PrintLine(c.OutOrStdout(), m) })
					if err == nil && n == 0 {
						err = r.Unknown(route)
					}
					return err
				}
				return listRetries(ctx, r, c.OutOrStdout(), route, limit)
			})
		},
	}
	c.Flags().StringVar(&route, "route", "", "only this route's")
	c.Flags().IntVar(&limit, "limit", cli.PageSize, "at most this many")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	return c
}

// eachRetry calls f for at most that many of those that wait, until it fails. It returns how many these were, and whether there are more.
func eachRetry(ctx context.Context, r *waiting.Reader, route string, limit int, f func(waiting.Message) error) (n int, more bool, err error) {
	var failed error
	err = r.Each(ctx, route, func(m waiting.Message) bool {
		if n == limit {
			more = true
			return false
		}
		n++
		failed = f(m)
		return failed == nil
	})
	return n, more, errors.Join(err, failed)
}

// listRetries prints them for a person.
func listRetries(ctx context.Context, r *waiting.Reader, out io.Writer, route string, limit int) error {
	head := []string{"MESSAGE", "WHERE", "ROUTE", "SUBJECT", "ATTEMPTS", "LAST FAILURE", "DUE", "ERROR"}
	rows := [][]string{head}
	n, more, err := eachRetry(ctx, r, route, limit, func(m waiting.Message) error {
		why := cli.Or(m.Fault, m.Error)
		if m.Dead != "" {
			why = "to be dead-lettered (" + m.Dead + "): " + why
		}
		rows = append(rows, []string{m.ID, m.Where, cli.Or(strings.Join(m.Routes, ", "), cli.Or(m.Durable, "-")), cli.Or(m.Subject, "-"), strconv.Itoa(m.Attempts),
			cli.Whenever(m.Last), cli.Whenever(m.Due), why})
		if len(rows) >= cli.FlushRows {
			cli.Table(out, rows)
			rows = rows[:0]
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case n == 0:
		if err := r.Unknown(route); err != nil {
			return err
		}
		fmt.Fprintln(out, "nothing waits for its retry")
		return nil
	}
	cli.Table(out, rows)
	if more {
		fmt.Fprintf(out, "\nThere are more: --limit or --all shows them.\n")
	}
	return nil
}

func newRetriesShow(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show MESSAGE", Short: "show one of them, with its body", Args: cli.Args(cobra.ExactArgs(1)), Example: "  relay retries show ORDERS/17",
		RunE: func(c *cobra.Command, a []string) error {
			stream, seq, err := waiting.ParseID(a[0])
			if err != nil {
				return err
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				r, err := waiting.Open(ctx, cl)
				if err != nil {
					return err
				}
				found := 0
				err = r.Each(ctx, "", func(m waiting.Message) bool {
					if m.Stream != stream || m.Sequence != seq {
						return true
					}
					found++
					if asJSON {
						err = cli.PrintJSON(c.OutOrStdout(), m)
						return true
					}
					if found > 1 {
						fmt.Fprintln(c.OutOrStdout())
					}
					showRetry(ctx, r, c.OutOrStdout(), m)
					return true
				})
				if err == nil && found == 0 {
					err = fmt.Errorf("%s does not wait for a retry (relay retries ls shows what does)", a[0])
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, without the body")
	return c
}

// showRetry prints a message for a person. The body of one in its durable is in its stream.
func showRetry(ctx context.Context, r *waiting.Reader, w io.Writer, m waiting.Message) {
	rows := [][]string{
		{"message", m.ID}, {"waits", "in durable " + m.Durable}, {"route", cli.Or(strings.Join(m.Routes, ", "), "-")},
		{"attempts", fmt.Sprintf("%d, first failure %s, last %s", m.Attempts, cli.Whenever(m.First), cli.Whenever(m.Last))}, {"due", cli.Whenever(m.Due)}, {"error", cli.Or(m.Error, "-")},
	}
	var body []byte
	if m.Parked != nil {
		rows[1][1], body = "parked in the retry stream, number "+strconv.FormatUint(m.Parked.Number, 10), m.Parked.Data
	} else if s, err := r.Client.JS.Stream(ctx, m.Stream); err == nil {
		if msg, err := s.GetMsg(ctx, m.Sequence); err == nil {
			m.Subject, body = msg.Subject, msg.Data
		}
	}
	rows = append(rows, []string{"subject", cli.Or(m.Subject, "-")})
	cli.Table(w, rows)
	fmt.Fprintf(w, "\nbody, %d bytes\n%s\n", len(body), cli.BodyText(body))
}
