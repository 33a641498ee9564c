package deadletters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
)

func newDLQ(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "dlq", Short: "look at dead letters, replay and discard them",
		Args: cli.Args(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDLQList(o), newDLQShow(o), newDLQReplay(o), newDLQDiscard(o), newDLQExport(o), newDLQImport(o))
	return c
}

func newDLQList(o *cli.Options) *cobra.Command {
	var f dlqFilter
	var asJSON, count, all bool
	var groupBy string
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list dead letters, oldest first", Args: cli.Args(cobra.NoArgs),
		Long: `Ls lists dead letters, oldest first, 50 at a time: --after goes on where the last page ended.

--body looks into bodies that are JSON. A path is made of names (.customer.id, ."odd.name"), indices (.items[0]) and [] for any
element; alone, it asks whether it is there. A value is a number or text: .id=42 finds 42 and "42", .id="42" only the text.

--group-by error puts errors of a route together that differ only in numbers, ids, dates, addresses and names of persons: words make
the group, also in quotes and in JSON, and so does a status or an exit code. EXAMPLE is the newest error of a group as it was; in
JSON it is "error", and "sample" its number. --limit is then how many groups to show, the largest first. --like NUMBER chooses the
entries of a group by one of its numbers, here and for replay, export and discard.`,
		Example: `  relay dlq ls --route billing --since 2h
  relay dlq ls --body '.customer.id=42' --body '.total>=100'
  relay dlq ls --group-by error`,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			if groupBy != "" && groupBy != "error" {
				return fmt.Errorf("%w: --group-by %q: must be error", cli.ErrUsage, groupBy)
			}
			if filter.Limit == 0 && !all && !count && groupBy == "" {
				filter.Limit = cli.PageSize
			}
			return o.WithDeadLetters(c, func(ctx context.Context, cl *cli.Client, store *dlq.Store) error {
				if err := f.resolve(ctx, cl, store, c.ErrOrStderr(), &filter); err != nil {
					return err
				}
				l := dlqListing{c: c, store: store, out: c.OutOrStdout(), errOut: c.ErrOrStderr(), filter: filter, json: asJSON}
				switch {
				case groupBy != "":
					return l.groups(ctx)
				case count:
					return l.count(ctx)
				}
				return l.list(ctx)
			})
		},
	}
	f.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	c.Flags().BoolVar(&count, "count", false, "print how many there are")
	c.Flags().BoolVar(&all, "all", false, "list all dead letters, not a page")
	c.Flags().StringVar(&groupBy, "group-by", "", "error: count those whose errors are alike")
	return c
}

// dlqListing prints what a filter finds.
type dlqListing struct {
	c           *cobra.Command
	store       *dlq.Store
	out, errOut io.Writer
	filter      dlq.Filter
	json        bool
}

// each calls f for every entry, and says which cannot be read.
func (l *dlqListing) each(ctx context.Context, f func(dlq.Entry) error) error {
	for e, err := range l.store.List(ctx, l.filter) {
		var bad *dlq.EntryError
		switch {
		case errors.As(err, &bad):
			fmt.Fprintln(l.errOut, "relay:", cli.Printable(bad.Error()))
			continue
		case err == nil:
			err = f(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *dlqListing) list(ctx context.Context) error {
	head := []string{"NUMBER", "STORED", "ROUTE", "SUBJECT", "REASON", "ATTEMPTS", "ERROR"}
	rows := [][]string{head}
	n, last := 0, uint64(0)
	err := l.each(ctx, func(e dlq.Entry) error {
		n, last = n+1, e.StoredSequence
		if l.json {
			return cli.PrintLine(l.out, e)
		}
		rows = append(rows, []string{
			strconv.FormatUint(e.StoredSequence, 10), cli.When(e.StoredTime), e.Route, cli.Printable(e.Subject), string(e.Reason),
			strconv.Itoa(e.Attempts), cli.Printable(e.LastError),
		})
		if len(rows) >= cli.FlushRows {
			cli.Table(l.out, rows)
			rows = rows[:0]
		}
		return nil
	})
	switch {
	case err != nil || l.json:
		return err
	case n == 0:
		fmt.Fprintln(l.out, "no dead letters")
	default:
		cli.Table(l.out, rows)
		if n == l.filter.Limit {
			fmt.Fprintf(l.out, "\nThere may be more: --after %d shows the next ones.\n", last)
		}
	}
	return nil
}

// showProgress has a terminal show how much is read of what the server says there is to read. done takes it away.
func (l *dlqListing) showProgress(ctx context.Context) (done func()) {
	if !cli.OnTerminal(l.errOut) {
		return func() {}
	}
	bar, total, looked := cli.NewBar(l.c, 0, ""), 0, 0
	l.filter.Looked = func() {
		if looked++; looked == 1 { // of what the server counts, nothing is read
			f := l.filter
			total, _, _ = l.store.Count(ctx, dlq.Filter{Route: f.Route, Since: f.Since, After: f.After})
			bar = cli.NewBar(l.c, total, "reading")
		}
		if looked%1000 == 0 {
			_ = bar.Set(min(looked, total))
		}
	}
	return func() { _ = bar.Finish() }
}

func (l *dlqListing) count(ctx context.Context) error {
	done := l.showProgress(ctx)
	n, bad, err := l.store.Count(ctx, l.filter)
	done()
	if err != nil {
		return err
	}
	if bad > 0 {
		fmt.Fprintf(l.errOut, "relay: %d more cannot be read\n", bad)
	}
	if l.json {
		return cli.PrintLine(l.out, map[string]int{"count": n})
	}
	fmt.Fprintln(l.out, n)
	return nil
}

func (l *dlqListing) groups(ctx context.Context) error {
	groups, show := dlq.NewGroups(), l.filter.Limit
	l.filter.Limit = 0 // of groups, not of entries
	done := l.showProgress(ctx)
	err := l.each(ctx, func(e dlq.Entry) error { groups.Add(e); return nil })
	done()
	if err != nil {
		return err
	}
	list := groups.List()
	hidden := 0
	if show > 0 && len(list) > show {
		hidden, list = len(list)-show, list[:show]
	}
	if l.json {
		for _, g := range list {
			if err := cli.PrintLine(l.out, g); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		fmt.Fprintln(l.out, "no dead letters")
		return nil
	}
	rows := [][]string{{"COUNT", "FIRST", "LAST", "SAMPLE", "ROUTE", "ERROR", "EXAMPLE"}}
	for _, g := range list {
		rows = append(rows, []string{
			strconv.Itoa(g.Count), cli.When(g.First), cli.When(g.Last), strconv.FormatUint(g.Sample, 10), cli.Or(g.Route, "-"),
			cli.Shorten(cli.Printable(cli.Or(g.Fingerprint, "(no error)")), 120), cli.Shorten(cli.Printable(g.Error), 120),
		})
	}
	cli.Table(l.out, rows)
	if hidden > 0 {
		fmt.Fprintf(l.out, "\n%d smaller %s not shown.\n", hidden, cli.Or(map[bool]string{true: "group is"}[hidden == 1], "groups are"))
	}
	return nil
}
