package deadletters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/subject"
)

func newDLQ(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "dlq", Short: "look at dead letters, replay and discard them",
		Args: cli.Args(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDLQList(o), newDLQShow(o), newDLQReplay(o), newDLQDiscard(o), newDLQExport(o), newDLQImport(o))
	return c
}

// dlqFilter are the flags that choose entries.
type dlqFilter struct {
	route, subject, reason, text, match string
	since, until, attempts              string
	body                                []string
	like                                uint64
	limit                               int
	after                               uint64
	given                               func(flag string) bool
}

func (f *dlqFilter) flags(c *cobra.Command) {
	s := c.Flags()
	f.given = s.Changed
	s.StringVar(&f.route, "route", "", "only this route's")
	s.StringVar(&f.subject, "subject", "", "only subjects that match this pattern (* and >)")
	s.StringVar(&f.reason, "reason", "", "only this reason: exhausted, dead, crash, expired, gave_up or operator")
	s.StringVar(&f.text, "error", "", "only errors that contain this text")
	s.StringVar(&f.match, "error-match", "", "only errors that match this regular expression")
	s.Uint64Var(&f.like, "like", 0, "only errors like that of the entry with this number: see ls --group-by error")
	s.StringVar(&f.since, "since", "", "only entries since this time (RFC 3339) or age (2h)")
	s.StringVar(&f.until, "until", "", "only entries before this time or age")
	s.StringVar(&f.attempts, "attempts", "", "only this many attempts: 3, 3-5, 3- or -5")
	s.StringArrayVar(&f.body, "body", nil, "only JSON bodies that meet this: '.customer.id=42', with =, !=, ~, <, <=, > or >=; may be repeated")
	s.Uint64Var(&f.after, "after", 0, "only entries after this number")
	s.IntVar(&f.limit, "limit", 0, "at most this many")
}

// any tells whether one of the flags is set.
func (f *dlqFilter) any() bool {
	return f.route+f.subject+f.reason+f.text+f.match+f.since+f.until+f.attempts != "" || len(f.body) > 0 || f.like+f.after > 0 || f.limit != 0
}

func (f *dlqFilter) filter(now time.Time) (dlq.Filter, error) {
	out := dlq.Filter{
		Route: f.route, Subject: f.subject, Reason: dlq.Reason(f.reason), Text: f.text, After: f.after, Limit: f.limit,
	}
	var errs []error
	switch out.Reason {
	case "", dlq.Exhausted, dlq.Rejected, dlq.Crash, dlq.Expired, dlq.GaveUp, dlq.Operator:
	default:
		errs = append(errs, fmt.Errorf("--reason %q: must be exhausted, dead, crash, expired, gave_up or operator", f.reason))
	}
	var err error
	if f.subject != "" {
		if err := subject.ValidatePattern(f.subject); err != nil {
			errs = append(errs, fmt.Errorf("--subject: %w", err))
		}
	}
	if f.match != "" {
		if out.Match, err = regexp.Compile(f.match); err != nil {
			errs = append(errs, fmt.Errorf("--error-match: %w", err))
		}
	}
	if out.Since, err = cli.ParseTime(f.since, now); err != nil {
		errs = append(errs, fmt.Errorf("--since %w", err))
	}
	if out.Until, err = cli.ParseTime(f.until, now); err != nil {
		errs = append(errs, fmt.Errorf("--until %w", err))
	}
	if out.MinAttempts, out.MaxAttempts, err = parseRange(f.attempts); err != nil {
		errs = append(errs, fmt.Errorf("--attempts %w", err))
	}
	for _, text := range f.body {
		m, err := dlq.ParseBodyMatch(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--body %w", err))
		}
		out.Body = append(out.Body, m)
	}
	if f.limit <= 0 && f.given("limit") {
		errs = append(errs, fmt.Errorf("--limit %d: must be above 0", f.limit))
	}
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("%w: %w", cli.ErrUsage, err)
	}
	return out, nil
}

// resolve asks the server for what a filter refers to, and refuses a route that nobody knows.
func (f *dlqFilter) resolve(ctx context.Context, cl *cli.Client, store *dlq.Store, notes io.Writer, filter *dlq.Filter) error {
	if err := f.known(ctx, cl, store, notes); err != nil {
		return err
	}
	if f.like == 0 {
		return nil
	}
	e, err := store.Get(ctx, f.like)
	if err != nil {
		return fmt.Errorf("--like: %w", entryError(f.like, err))
	}
	// A group is of one route: what ls --group-by shows as another row is not part of it.
	if f.route != "" && f.route != e.Route {
		return fmt.Errorf("%w: --like %d: that dead letter is of route %s, not %s", cli.ErrUsage, f.like, cli.Printable(e.Route), cli.Printable(f.route))
	}
	filter.Route, filter.Fingerprint = e.Route, dlq.Fingerprint(e.LastError)
	return nil
}

// parseRange reads 3, 3-5, 3- or -5. Zero is no bound.
func parseRange(s string) (low, high int, err error) {
	if s == "" {
		return 0, 0, nil
	}
	a, b, isRange := strings.Cut(s, "-")
	bound := func(s string) (n int) {
		if s != "" && err == nil {
			if n, err = strconv.Atoi(s); err == nil && n < 1 {
				err = strconv.ErrRange
			}
		}
		return n
	}
	low = bound(a)
	if high = low; isRange {
		high = bound(b)
	}
	if err != nil || a+b == "" || high != 0 && high < low {
		return 0, 0, fmt.Errorf("%q: must be a number such as 3, or a range such as 3-5, 3- or -5", s)
	}
	return low, high, nil
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
	c.Flags().BoolVar(&all, "all", false, "list all of them, not a page")
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

// entryError is about a dead letter that was asked for by its number.
func entryError(seq uint64, err error) error {
	var bad *dlq.EntryError
	switch {
	case errors.As(err, &bad):
		return err // says the number
	case errors.Is(err, dlq.ErrNotFound):
		return fmt.Errorf("no dead letter %d (relay dlq ls shows those there are)", seq)
	}
	return fmt.Errorf("dead letter %d: %w", seq, err)
}

func number(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: %q is not the number of a dead letter (relay dlq ls shows them)", cli.ErrUsage, s)
	}
	return n, nil
}

func numbers(a []string) (all []uint64, err error) {
	for _, s := range a {
		n, err := number(s)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}
