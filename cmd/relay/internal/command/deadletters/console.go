package deadletters

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/cmd/relay/internal/routes"
	"github.com/relaymq/relay/internal/dlq"
)

// Console is what the console shows of dead letters and replays, and does with them: the same as the commands.
type Console struct {
	cl  *cli.Client
	log *slog.Logger

	ctx  context.Context // of the replays that it runs
	end  context.CancelFunc
	runs sync.WaitGroup
}

// NewConsole works on the connection of the service.
func NewConsole(cl *cli.Client, log *slog.Logger) *Console {
	b := &Console{cl: cl, log: log}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

// Close stops the replays that the console runs; they can be resumed.
func (b *Console) Close() {
	b.end()
	b.runs.Wait()
}

// DeadLetters is the queue; nil when there have never been any.
func (b *Console) DeadLetters(ctx context.Context) (*dlq.Store, error) {
	store, err := dlq.Attach(ctx, b.cl.JS, b.cl.Config.Service)
	if errors.Is(err, dlq.ErrNoStream) && errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return store, err
}

// Filter reads a query as if it were flags.
func (b *Console) Filter(ctx context.Context, q url.Values) (dlq.Filter, []string, error) {
	f := dlqFilter{
		route: q.Get("route"), subject: q.Get("subject"), reason: q.Get("reason"), text: q.Get("error"), match: q.Get("error-match"),
		since: q.Get("since"), until: q.Get("until"), attempts: q.Get("attempts"), body: q["body"], given: func(flag string) bool { return q.Get(flag) != "" },
	}
	if like := q.Get("like"); like != "" {
		n, err := number(like)
		if err != nil {
			return dlq.Filter{}, nil, cli.ForConsole(err)
		}
		f.like = n
	}
	filter, err := f.filter(time.Now())
	if err != nil {
		return filter, nil, cli.ForConsole(err)
	}
	store, err := b.DeadLetters(ctx)
	if err != nil {
		return filter, nil, err
	}
	if store != nil {
		if err := f.resolve(ctx, b.cl, store, io.Discard, &filter); err != nil {
			return filter, nil, cli.ForConsole(err)
		}
	}
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(q)) {
		for _, v := range q[name] {
			flags = append(flags, "--"+name, v)
		}
	}
	return filter, flags, nil
}

func (b *Console) replayer(ctx context.Context, job *dlq.Job) (*replayer, error) {
	store, err := b.DeadLetters(ctx)
	if err == nil && store == nil {
		err = dlq.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	r := &replayer{cl: b.cl, store: store, job: job, out: io.Discard, errOut: io.Discard}
	r.routes, err = routes.Known(ctx, b.cl)
	return r, err
}

// Plan says what a replay or a discard would do.
func (b *Console) Plan(ctx context.Context, job *dlq.Job) (*dlq.Plan, []string, error) {
	r, err := b.replayer(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	plan, err := r.left(ctx)
	if err != nil {
		return nil, nil, err
	}
	var notes []string
	if job.Kind == "" {
		for _, route := range slices.Sorted(maps.Keys(plan.Routes)) {
			if note := r.routes.Note(route); note != "" {
				notes = append(notes, "route "+route+note)
			}
		}
		if !r.routes.Running {
			notes = append(notes, "no instance of relay answers: the messages wait in the retry stream until an instance runs")
		}
	}
	return plan, notes, nil
}

// Start begins a planned job in this process, and returns its id.
func (b *Console) Start(ctx context.Context, wanted dlq.Job, body []byte) (id string, err error) {
	job := &wanted // which the run writes to
	if job.Staged && job.StopAfter == 0 {
		job.StopAfter = 10
	}
	r, err := b.replayer(ctx, job)
	if err != nil {
		return "", err
	}
	plan, err := r.left(ctx)
	if err != nil {
		return "", err
	}
	if plan.Total == 0 {
		return "", &console.UsageError{Err: errors.New("nothing is left to replay of the chosen dead letters")}
	}
	now := time.Now()
	job.ID, job.State, job.Runner, job.Created = dlq.NewJobID(now), dlq.JobRunning, cli.Runner(), now.UTC()
	job.Total, job.Routes, job.Oldest, job.Newest, job.Last = plan.Total+plan.Refused, plan.Routes, plan.Oldest, plan.Newest, plan.Last
	if body != nil {
		original, err := r.store.Get(ctx, job.Numbers[0])
		if err == nil {
			err = r.store.KeepOriginal(ctx, job.ID, original)
		}
		if err != nil {
			return "", err
		}
		r.edited = body
	}
	jobs, err := dlq.OpenJobs(ctx, b.cl.JS, b.cl.Config.Service, b.cl.Config.NATS.Replicas)
	if err != nil {
		return "", err
	}
	if err := jobs.Create(ctx, job); err != nil {
		return "", err
	}
	id = job.ID
	b.run(r, jobs, plan)
	return id, nil
}

// run runs a job to its end, or to that of the process.
func (b *Console) run(r *replayer, jobs *dlq.Jobs, plan *dlq.Plan) {
	b.runs.Go(func() {
		var last dlq.Progress
		run := &dlq.Run{
			Store: r.store, Jobs: jobs, Job: r.job, Plan: plan, Runner: cli.Runner(), Edited: r.edited,
			Progress: func(p dlq.Progress) { last = p },
		}
		err := run.Do(b.ctx)
		r.report(last, err)
		b.log.Info("a replay of the console ended", "job", r.job.ID, "replayed", last.Handed, "of", last.Total, "error", err)
	})
}

// Resume goes on with a job that stopped.
func (b *Console) Resume(ctx context.Context, id, by string) error {
	jobs, err := b.Jobs(ctx)
	if err != nil {
		return err
	}
	if jobs == nil {
		return dlq.ErrNoJob
	}
	job, err := jobs.Get(ctx, id)
	if err == nil {
		err = resumable(job)
	}
	if err != nil {
		return err
	}
	r, err := b.replayer(ctx, &job)
	if err != nil {
		return err
	}
	plan, err := r.left(ctx)
	if err != nil {
		return err
	}
	b.log.Info("an operator resumes a replay", "job", id, "by", by, "left", plan.Total)
	b.run(r, jobs, plan)
	return nil
}

// Discard removes what the filter of the job finds, and returns how many went.
func (b *Console) Discard(ctx context.Context, job *dlq.Job) (int, error) {
	r, err := b.replayer(ctx, job)
	if err != nil {
		return 0, err
	}
	plan, err := r.left(ctx)
	if err != nil {
		return 0, err
	}
	named := slices.Collect(plan.Numbers())
	job.Routes, job.Oldest, job.Newest, job.Last = plan.Routes, plan.Oldest, plan.Newest, plan.Last
	done := 0
	err = cli.Record(ctx, b.cl, job, len(named), func() (n int, err error) {
		done, err = discardEach(ctx, r.store, job, named, func() {})
		return done, err
	})
	b.log.Info("an operator discarded dead letters", "by", job.By, "count", done, "record", job.ID)
	return done, err
}

// Jobs are those of replays; nil when nobody has begun one yet.
func (b *Console) Jobs(ctx context.Context) (*dlq.Jobs, error) {
	jobs, err := dlq.AttachJobs(ctx, b.cl.JS, b.cl.Config.Service)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil
	}
	return jobs, err
}

// left plans what is still there of what the job chose.
func (r *replayer) left(ctx context.Context) (*dlq.Plan, error) {
	choice := r.choice()
	if r.job.Kind != "" {
		choice.Refuse, choice.ToRoute = nil, false // whoever discards needs no route
	}
	if len(r.job.Numbers) > 0 {
		choice.Numbers = nil
		return r.planNumbers(ctx, choice)
	}
	return r.store.Plan(ctx, choice)
}
