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
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/fingerprint"
	"github.com/relaymq/relay/internal/subject"
)

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
	if f.like == 0 && f.given("like") {
		errs = append(errs, errors.New("--like 0: must be the number of a dead letter"))
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
	filter.Route, filter.Fingerprint = e.Route, fingerprint.Of(e.LastError)
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
