package deadletters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/transient"
)

func newDLQDiscard(o *cli.Options) *cobra.Command {
	var f dlqFilter
	var all bool
	var consent cli.Consent
	c := &cobra.Command{
		Use: "discard [NUMBER…]", Short: "remove dead letters for good",
		Long: `Discard removes the chosen dead letters for good. Entries that cannot be read are removed only by their numbers. Who
discarded what, and how many, is kept for 30 days: relay replay ls.`,
		RunE: func(c *cobra.Command, a []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			named, err := numbers(a)
			if err != nil {
				return err
			}
			switch {
			case len(a) == 0 && !all && !f.any():
				return fmt.Errorf("%w: name the dead letters, a filter, or --all", cli.ErrUsage)
			case len(a) > 0 && (all || f.any()):
				return fmt.Errorf("%w: name the dead letters, or a filter, not both", cli.ErrUsage)
			}
			return o.WithDeadLetters(c, func(ctx context.Context, cl *cli.Client, store *dlq.Store) error {
				if err := f.resolve(ctx, cl, store, c.ErrOrStderr(), &filter); err != nil {
					return err
				}
				record := &dlq.Job{Kind: dlq.Discard, Filter: filter, Numbers: named}
				if len(named) == 0 {
					plan, err := store.Plan(ctx, dlq.Choice{Filter: filter})
					if err != nil {
						return err
					}
					for _, r := range plan.Refusals {
						fmt.Fprintf(c.ErrOrStderr(), "relay: left alone: dead letter %d: %s\n", r.Number, cli.Printable(r.Why))
					}
					named = slices.Collect(plan.Numbers())
					record.Routes, record.Oldest, record.Newest, record.Last = plan.Routes, plan.Oldest, plan.Newest, plan.Last
				} else if err := present(ctx, store, named); err != nil {
					return err
				}
				if len(named) == 0 {
					fmt.Fprintln(c.OutOrStdout(), "no dead letters match")
					return nil
				}
				if err := consent.Confirm(ctx, c, fmt.Sprintf("Remove %d dead %s for good?", len(named), cli.Plural(len(named), "letter"))); err != nil {
					return err
				}
				return cli.Record(ctx, cl, record, len(named), func() (int, error) { return discardAll(ctx, c, store, record, named) })
			})
		},
	}
	f.flags(c)
	consent.Flag(c, "do not ask")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	return c
}

// present makes sure that nothing is asked about entries that are not there.
func present(ctx context.Context, store *dlq.Store, named []uint64) error {
	for _, n := range named {
		var bad *dlq.EntryError
		if _, err := store.Get(ctx, n); err != nil && !errors.As(err, &bad) {
			return entryError(n, err)
		}
	}
	return nil
}

func discardAll(ctx context.Context, c *cobra.Command, store *dlq.Store, record *dlq.Job, named []uint64) (int, error) {
	bar := cli.NewBar(c, len(named), "discarding")
	done, err := discardEach(ctx, store, record, named, func() { _ = bar.Add(1) })
	_ = bar.Finish()
	fmt.Fprintf(c.OutOrStdout(), "%d discarded\n", done)
	return done, err
}

// discardEach removes entries, and calls one after each, from one goroutine at a time. Those that somebody else took are counted in the record. When ctx
// ends, what was begun has a second, so that it is counted.
func discardEach(ctx context.Context, store *dlq.Store, record *dlq.Job, named []uint64, one func()) (int, error) {
	finish, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })()
	work, group := errgroup.WithContext(finish)
	work.SetLimit(16)
	var mu sync.Mutex
	done, gone := 0, 0
	for _, n := range named {
		if group.Err() != nil || ctx.Err() != nil {
			break
		}
		work.Go(func() error {
			err := discard(group, store, n)
			mu.Lock()
			defer mu.Unlock()
			one()
			switch {
			case err == nil:
				done++
			case errors.Is(err, dlq.ErrNotFound): // somebody was faster
				gone++
			default:
				return fmt.Errorf("dead letter %d: %w", n, err)
			}
			return nil
		})
	}
	err := work.Wait()
	record.Gone = gone
	left := len(named) - done - gone
	switch {
	case ctx.Err() != nil && left > 0:
		return done, fmt.Errorf("interrupted: %d dead %s left", left, are(left))
	case err != nil:
		return done, fmt.Errorf("%w; %d dead %s left", err, left, are(left))
	}
	return done, nil
}

// away is how long a discard waits for a server that went away.
const away = 15 * time.Second

// discard removes an entry. What is gone when the server is back was removed by the try whose answer was lost.
func discard(ctx context.Context, store *dlq.Store, n uint64) error {
	began := time.Now()
	for again := false; ; again = true {
		err := store.Discard(ctx, n)
		switch {
		case again && errors.Is(err, dlq.ErrNotFound):
			return nil
		case !transient.Is(err) || time.Since(began) > away:
			return err
		}
		transient.Pause(ctx, 250*time.Millisecond)
	}
}

func are(letters int) string {
	if letters == 1 {
		return "letter is"
	}
	return "letters are"
}
