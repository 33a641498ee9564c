package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/relaymq/relay/dlq"
)

// replayJob replays, or discards, the dead letters that were chosen.
type replayJob struct {
	store       *dlq.Store
	out, errOut io.Writer
	target      dlq.Target
}

// replayPlan is what was chosen.
type replayPlan struct {
	count          int
	routes         map[string]int
	oldest, newest time.Time
	last           uint64 // the newest entry: what comes later is not part of the plan
	numbers        []uint64
	filter         dlq.Filter
}

// plan looks at what was chosen, by number or by filter, without keeping it in memory.
func (j *replayJob) plan(ctx context.Context, args []string, f dlq.Filter) (p replayPlan, err error) {
	p = replayPlan{routes: map[string]int{}, filter: f}
	note := func(e dlq.Entry) {
		p.count++
		p.routes[e.Route]++
		if p.oldest.IsZero() || e.StoredTime.Before(p.oldest) {
			p.oldest = e.StoredTime
		}
		if e.StoredTime.After(p.newest) {
			p.newest = e.StoredTime
		}
		p.last = max(p.last, e.StoredSequence)
	}
	for _, a := range args {
		seq, err := number(a)
		if err != nil {
			return p, err
		}
		e, err := j.store.Get(ctx, seq)
		if err != nil {
			return p, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		p.numbers = append(p.numbers, seq)
		note(e)
	}
	if len(args) > 0 {
		return p, nil
	}
	for e, err := range j.store.List(ctx, f) {
		var bad *dlq.EntryError
		switch {
		case errors.As(err, &bad):
			fmt.Fprintln(j.errOut, "relay: left alone:", bad)
		case err != nil:
			return p, err
		default:
			note(e)
		}
	}
	return p, nil
}

func (p replayPlan) print(w io.Writer, to string) {
	if p.count == 0 {
		fmt.Fprintln(w, "no dead letters match")
		return
	}
	fmt.Fprintf(w, "%d dead %s, stored %s to %s\n", p.count, plural(p.count, "letter"), when(p.oldest), when(p.newest))
	for _, route := range slices.Sorted(maps.Keys(p.routes)) {
		where := "to route " + route
		switch to {
		case "":
		case dlq.ToOriginal:
			where = "of route " + route + ", each to its original subject"
		default:
			where = "of route " + route + ", to " + to
		}
		fmt.Fprintf(w, "  %d %s\n", p.routes[route], where)
	}
}

// each calls f for every entry of the plan.
func (j *replayJob) each(ctx context.Context, p replayPlan, f func(dlq.Entry) error) error {
	if len(p.numbers) > 0 {
		for _, seq := range p.numbers {
			e, err := j.store.Get(ctx, seq)
			if err == nil {
				err = f(e)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for e, err := range j.store.List(ctx, p.filter) {
		var bad *dlq.EntryError
		if errors.As(err, &bad) {
			continue // said when planning
		}
		if err == nil && e.StoredSequence > p.last {
			return nil
		}
		if err == nil {
			err = f(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (j *replayJob) run(ctx context.Context, p replayPlan) error {
	return j.progress(ctx, p, "replayed", func(ctx context.Context, e dlq.Entry) error { return j.store.Replay(ctx, e, j.target) })
}

func (j *replayJob) discard(ctx context.Context, p replayPlan) error {
	return j.progress(ctx, p, "discarded", func(ctx context.Context, e dlq.Entry) error { return j.store.Discard(ctx, e.StoredSequence) })
}

// progress does something with every entry and shows how far it is. What cannot be done is said and left alone.
func (j *replayJob) progress(ctx context.Context, p replayPlan, done string, do func(context.Context, dlq.Entry) error) error {
	bar := progressbar.DefaultSilent(int64(p.count))
	if f, ok := j.errOut.(*os.File); ok && term.IsTerminal(int(f.Fd())) && p.count > 20 {
		bar = progressbar.NewOptions(p.count, progressbar.OptionSetWriter(f), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	ok, refused := 0, 0
	err := j.each(ctx, p, func(e dlq.Entry) error {
		err := do(ctx, e)
		_ = bar.Add(1)
		switch {
		case err == nil:
			ok++
		case errors.Is(err, dlq.ErrNotFound): // somebody was faster
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			refused++
			fmt.Fprintf(j.errOut, "relay: dead letter %d stays: %v\n", e.StoredSequence, err)
		}
		return nil
	})
	_ = bar.Finish()
	fmt.Fprintf(j.out, "%d %s\n", ok, done)
	switch {
	case err != nil:
		return fmt.Errorf("stopped: %w", err)
	case refused > 0:
		return fmt.Errorf("%d of %d stay", refused, p.count)
	}
	return nil
}
