package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/dlq"
)

func newDLQ(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "dlq", Short: "look at dead letters, replay and discard them",
		Args: args(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDLQList(o), newDLQShow(o), newDLQReplay(o), newDLQDiscard(o))
	return c
}

// dlqFilter are the flags that choose entries.
type dlqFilter struct {
	route, subject, reason, text, match string
	since, until                        string
	limit                               int
	after                               uint64
}

func (f *dlqFilter) flags(c *cobra.Command) {
	s := c.Flags()
	s.StringVar(&f.route, "route", "", "only this route's")
	s.StringVar(&f.subject, "subject", "", "only subjects that match this pattern (* and >)")
	s.StringVar(&f.reason, "reason", "", "only this reason: exhausted, dead, crash, expired or gave_up")
	s.StringVar(&f.text, "error", "", "only errors that contain this text")
	s.StringVar(&f.match, "error-match", "", "only errors that match this regular expression")
	s.StringVar(&f.since, "since", "", "only entries since this time (RFC 3339) or age (2h)")
	s.StringVar(&f.until, "until", "", "only entries before this time or age")
	s.Uint64Var(&f.after, "after", 0, "only entries after this number")
	s.IntVar(&f.limit, "limit", 0, "at most this many")
}

func (f *dlqFilter) filter(now time.Time) (dlq.Filter, error) {
	out := dlq.Filter{
		Route: f.route, Subject: f.subject, Reason: dlq.Reason(f.reason), Text: f.text, After: f.after, Limit: f.limit,
	}
	var errs []error
	switch out.Reason {
	case "", dlq.Exhausted, dlq.Rejected, dlq.Crash, dlq.Expired, dlq.GaveUp:
	default:
		errs = append(errs, fmt.Errorf("--reason %q: must be exhausted, dead, crash, expired or gave_up", f.reason))
	}
	var err error
	if f.match != "" {
		if out.Match, err = regexp.Compile(f.match); err != nil {
			errs = append(errs, fmt.Errorf("--error-match: %w", err))
		}
	}
	if out.Since, err = parseTime(f.since, now); err != nil {
		errs = append(errs, fmt.Errorf("--since %w", err))
	}
	if out.Until, err = parseTime(f.until, now); err != nil {
		errs = append(errs, fmt.Errorf("--until %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("%w: %w", errUsage, err)
	}
	return out, nil
}

// parseTime reads a time, or an age before now.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(s); err == nil {
		return now.Add(-age), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("%q: must be a time such as %s or an age such as 2h", s, now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// withDLQ runs f with the dead letters of the service. Ctrl-C ends its context.
func (o *options) withDLQ(c *cobra.Command, f func(context.Context, *dlq.Store) error) error {
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt)
	defer stop()
	cl, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	store, err := dlq.Attach(ctx, cl.js, cl.cfg.Service)
	if err != nil {
		return err
	}
	return f(ctx, store)
}

// pageSize is how many entries ls shows unless told otherwise.
const pageSize = 50

func newDLQList(o *options) *cobra.Command {
	var f dlqFilter
	var asJSON bool
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list dead letters, oldest first", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			if filter.Limit == 0 {
				filter.Limit = pageSize
			}
			return o.withDLQ(c, func(ctx context.Context, store *dlq.Store) error {
				return listDLQ(ctx, c.OutOrStdout(), c.ErrOrStderr(), store, filter, asJSON)
			})
		},
	}
	f.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	return c
}

func listDLQ(ctx context.Context, out, errOut io.Writer, store *dlq.Store, f dlq.Filter, asJSON bool) error {
	rows := [][]string{{"NUMBER", "STORED", "ROUTE", "SUBJECT", "REASON", "ATTEMPTS", "ERROR"}}
	n, last := 0, uint64(0)
	for e, err := range store.List(ctx, f) {
		var bad *dlq.EntryError
		if errors.As(err, &bad) {
			fmt.Fprintln(errOut, "relay:", bad)
			continue
		}
		if err != nil {
			return err
		}
		n, last = n+1, e.StoredSequence
		if asJSON {
			if err := printLine(out, entryJSON(e, false)); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{
			strconv.FormatUint(e.StoredSequence, 10), when(e.StoredTime), e.Route, shorten(printable(e.Subject), 48), string(e.Reason),
			strconv.Itoa(e.Attempts), shorten(printable(e.LastError), 80),
		})
	}
	switch {
	case asJSON:
	case n == 0:
		fmt.Fprintln(out, "no dead letters")
	default:
		table(out, rows)
		if n == f.Limit {
			fmt.Fprintf(out, "\nThere may be more: --after %d shows the next ones.\n", last)
		}
	}
	return nil
}

func newDLQShow(o *options) *cobra.Command {
	var raw, asJSON bool
	c := &cobra.Command{
		Use: "show NUMBER", Short: "show one dead letter: where it is from, why it is here, its body", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, a []string) error {
			seq, err := number(a[0])
			if err != nil {
				return err
			}
			return o.withDLQ(c, func(ctx context.Context, store *dlq.Store) error {
				e, err := store.Get(ctx, seq)
				switch {
				case errors.Is(err, dlq.ErrNotFound):
					return fmt.Errorf("no dead letter %d (relay dlq ls shows those there are)", seq)
				case err != nil:
					return err
				case raw:
					_, err = c.OutOrStdout().Write(e.Data)
					return err
				case asJSON:
					return printJSON(c.OutOrStdout(), entryJSON(e, true))
				}
				showEntry(c.OutOrStdout(), e)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&raw, "raw", false, "print the body alone, byte for byte")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func number(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: %q is not the number of a dead letter (relay dlq ls shows them)", errUsage, s)
	}
	return n, nil
}

func newDLQReplay(o *options) *cobra.Command {
	var f dlqFilter
	var yes, dry bool
	var to string
	var job replayJob
	c := &cobra.Command{
		Use: "replay [NUMBER…]", Short: "hand dead letters back to the route that failed",
		Long: `Replay hands the chosen dead letters, or all of them, to the route that failed; no other consumer of their stream sees
them. Each has a fresh attempt budget. An entry is removed once its hand-over is confirmed, and what fails again comes
back as a new entry. With --to-subject the messages are published instead: "original" means each on its own subject.`,
		RunE: func(c *cobra.Command, a []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			job.target = dlq.Target{Subject: to}
			return o.withDLQ(c, func(ctx context.Context, store *dlq.Store) error {
				job.store, job.out, job.errOut = store, c.OutOrStdout(), c.ErrOrStderr()
				plan, err := job.plan(ctx, a, filter)
				if err != nil {
					return err
				}
				plan.print(job.out, to)
				if dry || plan.count == 0 {
					return nil
				}
				if err := confirm(c, yes, fmt.Sprintf("Replay %d dead %s?", plan.count, plural(plan.count, "letter"))); err != nil {
					return err
				}
				return job.run(ctx, plan)
			})
		},
	}
	f.flags(c)
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be replayed and do nothing")
	c.Flags().StringVar(&to, "to-subject", "", "publish to this subject instead, for every consumer of its stream to see (original: each to its own)")
	return c
}

func newDLQDiscard(o *options) *cobra.Command {
	var f dlqFilter
	var yes, all bool
	c := &cobra.Command{
		Use: "discard [NUMBER…]", Short: "remove dead letters for good",
		RunE: func(c *cobra.Command, a []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			if len(a) == 0 && !all && f == (dlqFilter{}) {
				return fmt.Errorf("%w: name the dead letters, a filter, or --all", errUsage)
			}
			return o.withDLQ(c, func(ctx context.Context, store *dlq.Store) error {
				job := replayJob{store: store, out: c.OutOrStdout(), errOut: c.ErrOrStderr()}
				plan, err := job.plan(ctx, a, filter)
				if err != nil {
					return err
				}
				if plan.count == 0 {
					fmt.Fprintln(job.out, "no dead letters match")
					return nil
				}
				if err := confirm(c, yes, fmt.Sprintf("Remove %d dead %s for good?", plan.count, plural(plan.count, "letter"))); err != nil {
					return err
				}
				return job.discard(ctx, plan)
			})
		},
	}
	f.flags(c)
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	return c
}

// showEntry prints an entry for a person.
func showEntry(w io.Writer, e dlq.Entry) {
	rows := [][]string{
		{"dead letter", strconv.FormatUint(e.StoredSequence, 10) + ", stored " + when(e.StoredTime) + " by " + e.Instance},
		{"reason", string(e.Reason)},
		{"error", printable(e.LastError)},
		{"route", e.Route},
		{"subject", printable(e.Subject)},
		{"origin", fmt.Sprintf("stream %s, sequence %d, published %s, consumer %s", e.Stream, e.Sequence, when(e.Time), e.Consumer)},
		{"attempts", fmt.Sprintf("%d, first failure %s, last %s", e.Attempts, when(e.FirstFailure), when(e.LastFailure))},
	}
	if e.Replay > 0 {
		rows = append(rows, []string{"replayed", fmt.Sprintf("%d times %s", e.Replay, e.Job)})
	}
	for name, values := range e.Header {
		for _, v := range values {
			rows = append(rows, []string{"header", printable(name) + ": " + printable(v)})
		}
	}
	table(w, rows)
	if len(e.Stack) > 0 {
		fmt.Fprintf(w, "\nstack\n")
		for line := range strings.Lines(string(e.Stack)) {
			fmt.Fprintln(w, "  "+strings.ReplaceAll(printable(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    ")), "\n", ""))
		}
	}
	fmt.Fprintf(w, "\nbody, %d bytes\n%s\n", e.Size, bodyText(e.Data))
}
