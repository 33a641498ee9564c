package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/event"
)

func newDLQDiscard(o *options) *cobra.Command {
	var f dlqFilter
	var yes, all bool
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
				return fmt.Errorf("%w: name the dead letters, a filter, or --all", errUsage)
			case len(a) > 0 && (all || f.any()):
				return fmt.Errorf("%w: name the dead letters, or a filter, not both", errUsage)
			}
			return o.withDLQ(c, func(ctx context.Context, cl *client, store *dlq.Store) error {
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
						fmt.Fprintf(c.ErrOrStderr(), "relay: left alone: dead letter %d: %s\n", r.Number, printable(r.Why))
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
				if err := confirm(ctx, c, yes, fmt.Sprintf("Remove %d dead %s for good?", len(named), plural(len(named), "letter"))); err != nil {
					return err
				}
				return recorded(ctx, cl, record, len(named), func() (int, error) { return discardAll(ctx, c, store, named) })
			})
		},
	}
	f.flags(c)
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	return c
}

// recorded keeps who discards what, before the first entry goes, and how many went.
func recorded(ctx context.Context, cl *client, record *dlq.Job, total int, discard func() (int, error)) error {
	jobs, err := dlq.OpenJobs(ctx, cl.js, cl.cfg.Service, cl.cfg.NATS.Replicas)
	if err != nil {
		return fmt.Errorf("nothing is discarded, because it cannot be recorded: %w", err)
	}
	now := time.Now()
	record.ID, record.State, record.By, record.Runner, record.Created, record.Total = dlq.NewJobID(now), dlq.JobRunning, or(record.By, caller()), runner(), now.UTC(), total
	if err := jobs.Create(ctx, record); err != nil {
		return fmt.Errorf("nothing is discarded, because it cannot be recorded: %w", err)
	}
	done, err := discard()
	what := "discarded from the dead letters"
	if record.Kind == dlq.RetriesDiscard {
		what = "discarded while they waited for their retry"
	}
	cl.tell(event.Audit, event.Data{By: record.By, Job: record.ID, Text: fmt.Sprintf("%d of %d %s", done, total, what)})
	record.Handed, record.State = done, dlq.JobDone
	if err != nil {
		record.State, record.Why = dlq.JobStopped, err.Error()
	} else {
		record.Gone = total - done
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // after Ctrl-C too
	defer cancel()
	return errors.Join(err, jobs.End(end, record))
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

func discardAll(ctx context.Context, c *cobra.Command, store *dlq.Store, named []uint64) (int, error) {
	bar := newBar(c, len(named), "discarding")
	done, err := discardEach(ctx, store, named, func() { _ = bar.Add(1) })
	_ = bar.Finish()
	fmt.Fprintf(c.OutOrStdout(), "%d discarded\n", done)
	return done, err
}

// discardEach removes entries, and calls one after each, from one goroutine at a time.
func discardEach(ctx context.Context, store *dlq.Store, named []uint64, one func()) (int, error) {
	work, group := errgroup.WithContext(ctx)
	work.SetLimit(16)
	var mu sync.Mutex
	done := 0
	for _, n := range named {
		if group.Err() != nil {
			break
		}
		work.Go(func() error {
			err := store.Discard(group, n)
			mu.Lock()
			defer mu.Unlock()
			one()
			switch {
			case err == nil:
				done++
			case errors.Is(err, dlq.ErrNotFound): // somebody was faster
			default:
				return fmt.Errorf("dead letter %d: %w", n, err)
			}
			return nil
		})
	}
	err := work.Wait()
	if ctx.Err() != nil && done < len(named) {
		return done, fmt.Errorf("interrupted: %d are left", len(named)-done)
	}
	return done, err
}

// newBar is a progress bar with an ETA on a terminal, and nothing elsewhere.
func newBar(c *cobra.Command, total int, what string) *progressbar.ProgressBar {
	w := c.ErrOrStderr()
	if !onTerminal(w) || total < 20 {
		return progressbar.DefaultSilent(int64(total))
	}
	return progressbar.NewOptions(total, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish())
}

func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
