package deadletters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/routes"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/subject"
)

// replayFlags are those that say how a job runs.
type replayFlags struct {
	rate      float64
	staged    bool
	wait      bool
	stopAfter string
}

func (f *replayFlags) flags(c *cobra.Command) {
	s := c.Flags()
	s.Float64Var(&f.rate, "rate", 0, "at most this many a second; 0: as fast as it goes")
	s.BoolVar(&f.staged, "staged", false, "hand over 1, then 10, then 100, then the rest, and wait for the verdicts of each stage")
	s.StringVar(&f.stopAfter, "stop-after", "", "stop when more than this share fails at its first attempt: 5% (default 10% with --staged)")
	s.BoolVar(&f.wait, "wait", false, "wait until each message has had its first attempt")
}

// apply puts the flags that were given into the job.
func (f *replayFlags) apply(c *cobra.Command, job *dlq.Job) error {
	given := c.Flags().Changed
	if given("rate") {
		job.Rate = f.rate
	}
	if given("staged") {
		job.Staged = f.staged
	}
	if given("wait") {
		job.Wait = f.wait
	}
	if f.stopAfter != "" {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(f.stopAfter, "%"), 64)
		if err != nil || !(percent > 0 && percent < 100) { // so that NaN is refused
			return fmt.Errorf("%w: --stop-after %q: must be a share such as 5%%", cli.ErrUsage, f.stopAfter)
		}
		job.StopAfter = percent
	} else if job.Staged && job.StopAfter == 0 {
		job.StopAfter = 10
	}
	switch {
	case job.Rate < 0:
		return fmt.Errorf("%w: --rate %g: must not be below 0 (0: no bound)", cli.ErrUsage, job.Rate)
	case math.IsNaN(job.Rate) || math.IsInf(job.Rate, 0):
		return fmt.Errorf("%w: --rate %g: must be a number (0: no bound)", cli.ErrUsage, job.Rate)
	case job.Subject != "" && (job.Staged || job.StopAfter > 0 || job.Wait):
		return fmt.Errorf("%w: --staged, --stop-after and --wait need the verdicts of a route: they cannot go with --to-subject", cli.ErrUsage)
	}
	return nil
}

func newDLQReplay(o *cli.Options) *cobra.Command {
	var f dlqFilter
	var how replayFlags
	var dry, edit bool
	var consent cli.Consent
	var to string
	c := &cobra.Command{
		Use: "replay [NUMBER…]", Short: "hand dead letters back to the route that failed, as a job",
		Long: `Replay hands the chosen dead letters, or all of them, to the route that failed; no other consumer of their stream sees
them. Each has a fresh attempt budget. An entry is removed once its hand-over is confirmed, and what fails again comes
back as a new entry with its history. With --to-subject the messages are published instead: "original" means each on its
own subject.

It is a job: Ctrl-C stops it between two messages, a crash loses nothing, and relay replay ls, show, cancel and resume work
from any machine. Messages go in the order in which they were published; one waits for the hand-over of the one before it
that has the same key.

--edit opens the body of one entry in $VISUAL or $EDITOR and replays it with what you save; the first body is kept for 30 days.`,
		Example: `  relay dlq replay --route billing --since 2h --dry-run
  relay dlq replay --route billing --since 2h --staged --rate 500
  relay dlq replay 17 --edit`,
		RunE: func(c *cobra.Command, a []string) error {
			filter, err := f.filter(time.Now())
			if err != nil {
				return err
			}
			named, err := numbers(a)
			if err != nil {
				return err
			}
			if len(named) > 0 && f.any() {
				return fmt.Errorf("%w: name the dead letters, or a filter, not both", cli.ErrUsage)
			}
			if edit && len(named) != 1 {
				return fmt.Errorf("%w: --edit needs the number of one dead letter", cli.ErrUsage)
			}
			job := &dlq.Job{Numbers: named, Filter: filter, Subject: to, Edited: edit}
			if err := how.apply(c, job); err != nil {
				return err
			}
			if to != "" && to != "original" {
				if err := subject.ValidateLiteral(to); err != nil {
					return fmt.Errorf("%w: --to-subject: %w", cli.ErrUsage, err)
				}
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				r, err := newReplayer(ctx, c, cl, job)
				if err != nil {
					return err
				}
				if err := f.resolve(ctx, cl, r.store, r.errOut, &job.Filter); err != nil {
					return err
				}
				plan, err := r.plan(ctx)
				if err != nil || dry {
					return err
				}
				return r.start(ctx, plan, consent)
			})
		},
	}
	f.flags(c)
	how.flags(c)
	consent.Flag(c, "do not ask")
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be replayed and do nothing")
	c.Flags().BoolVar(&edit, "edit", false, "edit the body of the one entry first")
	c.Flags().StringVar(&to, "to-subject", "", "publish to this subject instead, for every consumer of its stream to see (original: each to its own)")
	return c
}

// replayer runs one job.
type replayer struct {
	c           *cobra.Command
	cl          *cli.Client
	store       *dlq.Store
	job         *dlq.Job
	edited      []byte
	routes      routes.Table
	out, errOut io.Writer
}

func newReplayer(ctx context.Context, c *cobra.Command, cl *cli.Client, job *dlq.Job) (*replayer, error) {
	store, err := dlq.Attach(ctx, cl.JS, cl.Config.Service)
	if err != nil {
		return nil, err
	}
	r := &replayer{c: c, cl: cl, store: store, job: job, out: c.OutOrStdout(), errOut: c.ErrOrStderr()}
	r.routes, err = routes.Known(ctx, cl)
	return r, err
}

// choice is what the job replays, of what there is.
func (r *replayer) choice() dlq.Choice {
	c := dlq.Choice{Filter: r.job.Filter, Numbers: r.job.Numbers, Last: r.job.Last, Subject: r.job.Subject, Key: r.routes.Key}
	if r.job.Subject == "" {
		c.Refuse, c.ToRoute = r.routes.Refuse, true
	}
	return c
}

// plan plans the job, and says what is going to happen.
func (r *replayer) plan(ctx context.Context) (*dlq.Plan, error) {
	if err := present(ctx, r.store, r.job.Numbers); err != nil {
		return nil, err
	}
	plan, err := r.store.Plan(ctx, r.choice())
	if err != nil {
		return nil, err
	}
	r.print(plan)
	return plan, nil
}

// start asks, and runs the job.
func (r *replayer) start(ctx context.Context, plan *dlq.Plan, consent cli.Consent) (err error) {
	switch {
	case plan.Total > 0:
	case plan.Refused > 0:
		return fmt.Errorf("all %d stay", plan.Refused)
	default:
		return nil
	}
	now := time.Now()
	job := r.job
	job.ID, job.State, job.By, job.Runner, job.Created = dlq.NewJobID(now), dlq.JobRunning, cli.Caller(), cli.Runner(), now.UTC()
	job.Total, job.Routes, job.Oldest, job.Newest, job.Last = plan.Total+plan.Refused, plan.Routes, plan.Oldest, plan.Newest, plan.Last
	var original dlq.Entry
	if job.Edited {
		if original, err = r.edit(ctx, job.Numbers[0]); err != nil {
			return err
		}
	}
	if err := r.confirm(ctx, plan, consent); err != nil {
		return err
	}
	if job.Edited {
		if err := r.store.KeepOriginal(ctx, job.ID, original); err != nil {
			return err
		}
	}
	jobs, err := dlq.OpenJobs(ctx, r.cl.JS, r.cl.Config.Service, r.cl.Config.NATS.Replicas)
	if err != nil {
		return err
	}
	if err := jobs.Create(ctx, job); err != nil {
		return err
	}
	return r.run(ctx, jobs, plan)
}

func (r *replayer) confirm(ctx context.Context, plan *dlq.Plan, consent cli.Consent) error {
	return consent.Confirm(ctx, r.c, fmt.Sprintf("Replay %d dead %s?", plan.Total, cli.Plural(plan.Total, "letter")))
}

// print says what is going to happen.
func (r *replayer) print(p *dlq.Plan) {
	if p.Total+p.Refused == 0 {
		fmt.Fprintln(r.out, "no dead letters match")
		return
	}
	if p.Total > 0 {
		fmt.Fprintf(r.out, "%d dead %s, stored %s to %s\n", p.Total, cli.Plural(p.Total, "letter"), cli.When(p.Oldest), cli.When(p.Newest))
	}
	for _, route := range slices.Sorted(maps.Keys(p.Routes)) {
		where := "to route " + cli.Printable(route) + r.routes.Note(route)
		switch r.job.Subject {
		case "":
		case dlq.ToOriginal:
			where = "of route " + cli.Printable(route) + ", each to its original subject"
		default:
			where = "of route " + cli.Printable(route) + ", to " + cli.Printable(r.job.Subject)
		}
		fmt.Fprintf(r.out, "  %d %s\n", p.Routes[route], where)
	}
	if p.Refused > 0 {
		fmt.Fprintf(r.out, "%d %s, because\n", p.Refused, cli.Or(map[bool]string{true: "stays"}[p.Refused == 1], "stay"))
		for _, why := range slices.Sorted(maps.Keys(p.Reasons)) {
			fmt.Fprintf(r.out, "  %d: %s\n", p.Reasons[why], cli.Printable(why))
		}
		fmt.Fprintf(r.out, "  numbers %s\n", refusedNumbers(p.Refusals, p.Refused))
	}
	switch {
	case p.Total == 0:
	case r.job.Rate > 0:
		fmt.Fprintf(r.out, "at %g a second: %s\n", r.job.Rate, howLong(float64(p.Total)/r.job.Rate))
	}
	if p.Total > 0 && r.job.Subject == "" && !r.routes.Running {
		fmt.Fprintln(r.out, "no instance of relay answers: the messages wait in the retry stream until an instance runs")
	}
}

// howLong says how long so many seconds are.
func howLong(seconds float64) string {
	const year = 365 * 24 * time.Hour
	if seconds > year.Seconds() { // a duration has an end
		return "more than a year"
	}
	return fmt.Sprintf("about %v", (time.Duration(seconds*float64(time.Second)) + time.Second).Truncate(time.Second))
}

// shownNumbers is how many of the entries that stay are named in one line.
const shownNumbers = 20

// refusedNumbers are the first of those that stay, of n.
func refusedNumbers(list []dlq.Refusal, n int) string {
	var text []string
	for _, r := range list[:min(len(list), shownNumbers)] {
		text = append(text, strconv.FormatUint(r.Number, 10))
	}
	if more := n - len(text); more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(text, " ")
}

// run runs the job to its end, its stop or its cancellation.
func (r *replayer) run(ctx context.Context, jobs *dlq.Jobs, plan *dlq.Plan) error {
	job := r.job
	fmt.Fprintf(r.out, "job %s\n", job.ID)
	bar := cli.NewBar(r.c, job.Total, "replaying")
	var last dlq.Progress
	var waits []dlq.WaitsFor // that were told
	run := &dlq.Run{
		Store: r.store, Jobs: jobs, Job: job, Plan: plan, Runner: cli.Or(job.Runner, cli.Runner()), Edited: r.edited,
		Progress: func(p dlq.Progress) {
			last = p
			what := "replaying"
			if p.Waiting {
				what = fmt.Sprintf("waiting for %d verdicts", p.Handed-p.Verdicts.N()-p.Lost)
				for _, w := range p.WaitsFor {
					if !slices.ContainsFunc(waits, func(o dlq.WaitsFor) bool { return o.Route == w.Route && o.Stream == w.Stream && o.Since.Equal(w.Since) }) {
						waits = append(waits, w)
						fmt.Fprintf(r.errOut, "relay: waiting: %s\n", cli.Printable(w.String()))
					}
				}
			}
			bar.Describe(what)
			_ = bar.Set(p.Handed + p.Gone + p.Refused)
		},
		Refused: func(f dlq.Refusal) {
			fmt.Fprintf(r.errOut, "relay: dead letter %d stays: %s\n", f.Number, cli.Printable(f.Why))
		},
	}
	if job.Staged {
		run.StageDone = func(p dlq.Progress) {
			fmt.Fprintf(r.out, "stage %d: %d of %d replayed%s\n", p.Stage+1, p.Handed, p.Total, tally(p))
		}
	}
	run.Runner = cli.Runner()
	err := run.Do(ctx)
	_ = bar.Finish()
	r.report(last, err)
	return r.end(last, err)
}

// report publishes how it ended.
func (r *replayer) report(p dlq.Progress, err error) {
	d := event.Data{Job: r.job.ID, By: r.job.Runner, Text: fmt.Sprintf("replay %s is done: %d of %d replayed%s", r.job.ID, p.Handed, p.Total, tally(p))}
	kind := event.Kind(eventkind.ReplayDone)
	if err != nil {
		kind, d.Why = eventkind.ReplayStopped, err.Error()
		d.Text = fmt.Sprintf("replay %s stopped after %d of %d: %v", r.job.ID, p.Handed, p.Total, err)
	}
	if len(r.job.Routes) == 1 {
		for d.Route = range r.job.Routes {
		}
	}
	r.cl.Tell(kind, d)
}

// tally says what the first attempts gave.
func tally(p dlq.Progress) string {
	if !p.Waits() {
		return ""
	}
	text := fmt.Sprintf(": %d succeeded, %d failed", p.Verdicts.OK, p.Verdicts.Failed)
	if open := p.Handed - p.Verdicts.N() - p.Lost; open > 0 {
		text += fmt.Sprintf(", %d not tried yet", open)
	}
	if p.Lost > 0 {
		text += fmt.Sprintf(", %d handled without a verdict", p.Lost)
	}
	return text
}

// end says how it ended.
func (r *replayer) end(p dlq.Progress, err error) error {
	if p.ID != "" {
		fmt.Fprintf(r.out, "%d replayed%s\n", p.Handed, tally(p))
		if p.Gone > 0 {
			fmt.Fprintf(r.out, "%d dead letters were gone: somebody else replayed or discarded them\n", p.Gone)
		}
	}
	var stopped *dlq.StoppedError
	switch {
	case errors.As(err, &stopped) && r.job.Edited:
		return fmt.Errorf("stopped: %w", err)
	case errors.As(err, &stopped):
		why := err
		if errors.Is(err, context.Canceled) {
			why = errors.New("interrupted")
		}
		left := p.Total - p.Handed - p.Gone - p.Refused
		return fmt.Errorf("stopped: %w; %d left, resume with: relay replay resume %s", why, left, stopped.Job)
	case err != nil:
		return err
	case p.Refused > 0:
		return fmt.Errorf("%d of %d dead letters stay: relay replay show %s says which, and why", p.Refused, p.Total, p.ID)
	}
	return nil
}
