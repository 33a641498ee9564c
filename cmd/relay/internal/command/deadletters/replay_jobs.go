package deadletters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
)

func newReplay(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "replay", Short: "look at replay jobs, cancel and resume them",
		Long: `Replay jobs are begun by relay dlq replay. Their state is on the NATS server for 30 days after their last change, so these
commands work from any machine.`,
		Args: cli.Args(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newReplayList(o), newReplayShow(o), newReplayCancel(o), newReplayResume(o))
	return c
}

// errNoJobs says that nobody has begun a job on this service.
var errNoJobs = fmt.Errorf("%w: there are none yet (relay dlq replay begins one)", dlq.ErrNoJob)

func withJobs(o *cli.Options, c *cobra.Command, f func(context.Context, *cli.Client, *dlq.Jobs) error) error {
	return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
		jobs, err := dlq.AttachJobs(ctx, cl.JS, cl.Config.Service)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return errNoJobs
		}
		if err != nil {
			return err
		}
		return f(ctx, cl, jobs)
	})
}

// silentAfter is how old the last sign of life of a job may be before it is shown.
const silentAfter = 5 * time.Second

func jobState(j dlq.Job, now time.Time) string {
	if silent := now.Sub(j.Updated); j.State == dlq.JobRunning && silent > silentAfter {
		return fmt.Sprintf("silent for %v", silent.Round(time.Second))
	}
	return string(j.State)
}

// waitsFor is what a job that runs waits for, and that nobody asks for.
func waitsFor(j dlq.Job) string {
	var list []string
	for _, w := range j.WaitsFor {
		list = append(list, w.String())
	}
	if len(list) == 0 || j.State != dlq.JobRunning {
		return ""
	}
	return "waits: " + strings.Join(list, "; ")
}

// jobKind is what a job does.
func jobKind(j dlq.Job) string {
	switch {
	case j.State == dlq.JobNewer:
		return "-"
	case j.Edited:
		return "edit"
	}
	return cli.Or(j.Kind, "replay")
}

func newReplayList(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list replay jobs, and what was discarded or moved, oldest first", Args: cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			err := withJobs(o, c, func(ctx context.Context, _ *cli.Client, jobs *dlq.Jobs) error {
				list, err := jobs.List(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					for _, j := range list {
						if err := cli.PrintLine(c.OutOrStdout(), j); err != nil {
							return err
						}
					}
					return nil
				}
				if len(list) == 0 {
					return errNoJobs
				}
				rows := [][]string{{"JOB", "WHAT", "STATE", "DONE", "OF", "STAY", "CREATED", "BY", "WHY"}}
				for _, j := range list {
					rows = append(rows, []string{j.ID, jobKind(j), jobState(j, time.Now()), fmt.Sprint(j.Handed), fmt.Sprint(j.Total), fmt.Sprint(j.Refused),
						cli.When(j.Created), cli.Printable(j.By), cli.Printable(cli.Or(j.Why, waitsFor(j)))})
				}
				cli.Table(c.OutOrStdout(), rows)
				return nil
			})
			if errors.Is(err, errNoJobs) { // an empty list is no failure
				if !asJSON {
					fmt.Fprintln(c.OutOrStdout(), "no replay jobs")
				}
				return nil
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	return c
}

// jobReport is a job as relay replay show --json prints it.
type jobReport struct {
	dlq.Job
	Verdicts dlq.Tally   `json:"verdicts"`
	Failures []dlq.Group `json:"failures,omitempty"`
}

func newReplayShow(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show JOB", Short: "how far a job is, what its messages' first attempts gave, and what stays", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, a []string) error {
			return withJobs(o, c, func(ctx context.Context, _ *cli.Client, jobs *dlq.Jobs) error {
				job, err := jobs.Get(ctx, a[0])
				if err != nil {
					return err
				}
				report := jobReport{Job: job}
				if report.Verdicts, report.Failures, err = jobs.Results(ctx, job.ID); err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(c.OutOrStdout(), report)
				}
				showJob(c.OutOrStdout(), report, time.Now())
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func showJob(w io.Writer, j jobReport, now time.Time) {
	state := jobState(j.Job, now)
	if j.Why != "" {
		state += ": " + cli.Printable(j.Why)
	}
	rows := [][]string{
		{"job", j.ID + ", by " + cli.Printable(j.By) + ", created " + cli.When(j.Created) + ", last change " + cli.When(j.Updated)},
		{"state", state},
		{"chosen", fmt.Sprintf("%d, stored %s to %s: %s", j.Total, cli.When(j.Oldest), cli.When(j.Newest), chosen(j.Job))},
	}
	for _, route := range slices.Sorted(maps.Keys(j.Routes)) {
		rows = append(rows, []string{"route", fmt.Sprintf("%s: %d", cli.Printable(route), j.Routes[route])})
	}
	verb := "replayed"
	switch j.Kind {
	case "":
	case dlq.OrphansMove:
		verb = "moved"
	default:
		verb = "discarded"
	}
	rows = append(rows, []string{verb, fmt.Sprintf("%d, gone %d, stay %d, left %d", j.Handed, j.Gone, j.Refused, max(0, j.Total-j.Handed-j.Gone-j.Refused))})
	if j.Subject == "" && j.Kind == "" {
		rows = append(rows, []string{"verdicts", fmt.Sprintf("%d succeeded, %d failed at their first attempt", j.Verdicts.OK, j.Verdicts.Failed)})
	}
	cli.Fields(w, rows)
	if len(j.Failures) > 0 {
		fmt.Fprintln(w, "\nfailures")
		rows = [][]string{{"COUNT", "ROUTE", "ERROR"}}
		for _, g := range j.Failures {
			rows = append(rows, []string{fmt.Sprint(g.Count), cli.Printable(g.Route), cli.Printable(g.Error)})
		}
		cli.Table(w, rows)
	}
	if len(j.Refusals) > 0 {
		fmt.Fprintln(w, "\nwhat stays")
		for _, why := range slices.Sorted(maps.Keys(j.Reasons)) {
			fmt.Fprintf(w, "%d: %s\n", j.Reasons[why], cli.Printable(why))
		}
		rows = [][]string{{"NUMBER", "WHY"}}
		for _, r := range j.Refusals {
			rows = append(rows, []string{fmt.Sprint(r.Number), cli.Printable(r.Why)})
		}
		cli.Table(w, rows)
		if more := j.Refused - len(j.Refusals); more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
	}
	for _, wait := range j.WaitsFor {
		fmt.Fprintf(w, "\nwaits: %s\n", cli.Printable(wait.String()))
	}
}

// chosen says what a job replays, and how, in the words of its flags.
func chosen(j dlq.Job) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	text := func(flag, value string) {
		if value != "" {
			add("--%s %s", flag, cli.Printable(value))
		}
	}
	f := j.Filter
	if len(j.Numbers) > 0 {
		add("numbers %v", j.Numbers)
	}
	text("route", f.Route)
	text("subject", f.Subject)
	text("reason", string(f.Reason))
	text("error", f.Text)
	if f.Match != nil {
		text("error-match", f.Match.String())
	}
	text("like", f.Fingerprint)
	if !f.Since.IsZero() {
		add("--since %s", f.Since.UTC().Format(time.RFC3339))
	}
	if !f.Until.IsZero() {
		add("--until %s", f.Until.UTC().Format(time.RFC3339))
	}
	if f.MinAttempts+f.MaxAttempts > 0 {
		add("--attempts %d-%d", f.MinAttempts, f.MaxAttempts)
	}
	for _, m := range f.Body {
		text("body", m.String())
	}
	if f.After > 0 {
		add("--after %d", f.After)
	}
	if f.Limit > 0 {
		add("--limit %d", f.Limit)
	}
	text("to-subject", j.Subject)
	if len(parts) == 0 {
		add("all")
	}
	if j.Rate > 0 {
		add("--rate %g", j.Rate)
	}
	if j.Staged {
		add("--staged")
	}
	if j.StopAfter > 0 {
		add("--stop-after %g%%", j.StopAfter)
	}
	if j.Edited {
		add("--edit")
	}
	return strings.Join(parts, " ")
}

func newReplayCancel(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "cancel JOB", Short: "stop a job, wherever it runs", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Cancel stops a job within about a second. What it handed over already is handled by its routes; the rest stays in the
dead letters. A cancelled job can be resumed.`,
		RunE: func(c *cobra.Command, a []string) error {
			return withJobs(o, c, func(ctx context.Context, _ *cli.Client, jobs *dlq.Jobs) error {
				job, err := jobs.Cancel(ctx, a[0], cli.Caller())
				if err != nil {
					return err
				}
				if job.State == dlq.JobDone {
					return fmt.Errorf("job %s is done", job.ID)
				}
				fmt.Fprintf(c.OutOrStdout(), "job %s is cancelled\n", job.ID)
				return nil
			})
		},
	}
}

func newReplayResume(o *cli.Options) *cobra.Command {
	var how replayFlags
	var consent cli.Consent
	c := &cobra.Command{
		Use: "resume JOB", Short: "go on with a job that was stopped, cancelled or cut off by a crash", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Resume replays what a job has left. A job that somebody else runs is not touched; a job whose runner crashed is taken
over after two seconds of silence. Within ten minutes after a crash nothing is delivered twice. Flags change how it goes on.

It shows who began the job, what the job chose and where that goes, and asks: a job is a record on the server, which others may
be able to write. A staged job that stopped because of failures goes on with the stage that stopped it, from ten messages on.`,
		RunE: func(c *cobra.Command, a []string) error {
			return withJobs(o, c, func(ctx context.Context, cl *cli.Client, jobs *dlq.Jobs) error {
				job, err := jobs.Get(ctx, a[0])
				if err == nil {
					err = resumable(job)
				}
				if err != nil {
					return err
				}
				if err := how.apply(c, &job); err != nil {
					return err
				}
				r, err := newReplayer(ctx, c, cl, &job)
				if err != nil {
					return err
				}
				plan, err := r.left(ctx)
				if err != nil {
					return err
				}
				fmt.Fprintf(r.out, "job %s, begun by %s on %s: %s\n", job.ID, cli.Printable(job.By), cli.When(job.Created), chosen(job))
				r.print(plan)
				if plan.Total > 0 {
					if err := r.confirm(ctx, plan, consent); err != nil {
						return err
					}
				}
				return r.run(ctx, jobs, plan)
			})
		},
	}
	how.flags(c)
	consent.Flag(c, "do not ask")
	return c
}

// resumable says why a job cannot be resumed.
func resumable(job dlq.Job) error {
	switch {
	case job.State == dlq.JobDone:
		return fmt.Errorf("job %s is done", job.ID)
	case job.Kind != "":
		return fmt.Errorf("%s is a record (%s), which cannot be resumed", job.ID, cli.Printable(job.Kind))
	case job.Outdated() != "":
		return fmt.Errorf("job %s cannot be resumed: %s", job.ID, job.Outdated())
	case job.Edited:
		return fmt.Errorf("job %s replayed an edited body, which only its first run had: edit the entry again", job.ID)
	}
	return nil
}

// planNumbers plans those of the job's numbers that are still there.
func (r *replayer) planNumbers(ctx context.Context, choice dlq.Choice) (*dlq.Plan, error) {
	for _, n := range r.job.Numbers {
		_, err := r.store.Get(ctx, n)
		if errors.Is(err, dlq.ErrNotFound) {
			continue
		}
		choice.Numbers = append(choice.Numbers, n)
	}
	if len(choice.Numbers) == 0 {
		return &dlq.Plan{}, nil
	}
	return r.store.Plan(ctx, choice)
}
