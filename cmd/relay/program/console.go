package program

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/version"
)

// behindConsole is what the console shows and does: the same as the commands, on the connection of the service.
type behindConsole struct {
	cl      *cli.Client
	running func() *config.Config // the configuration that runs now
	log     *slog.Logger

	ctx  context.Context // of the replays that it runs
	end  context.CancelFunc
	runs sync.WaitGroup
}

var _ console.Backend = (*behindConsole)(nil)

func newBehindConsole(cl *cli.Client, running func() *config.Config, log *slog.Logger) *behindConsole {
	b := &behindConsole{cl: cl, running: running, log: log}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

// close stops the replays that the console runs; they can be resumed.
func (b *behindConsole) close() {
	b.end()
	b.runs.Wait()
}

func (b *behindConsole) Status(ctx context.Context) (consumer.Answers, error) {
	return consumer.Ask(ctx, b.cl.Conn.Conn, b.cl.Config.Service, consumer.StatusRequest{})
}

func (b *behindConsole) Routes(instances []consumer.Status, now time.Time) (list []console.Route) {
	for _, o := range routesOver(instances) {
		r := console.Route{
			Name: o.name, State: o.states(), First: o.on[0], Keys: map[string]int{}, Backlog: o.latest(),
			Run: o.sum(func(r consumer.RouteStatus) int { return r.Running }), Stuck: o.sum(func(r consumer.RouteStatus) int { return r.Stuck }),
			Held: o.sum(func(r consumer.RouteStatus) int { return r.Window + r.Stash }),
		}
		for i, on := range o.on {
			r.On = append(r.On, console.On{Instance: o.instances[i], RouteStatus: on})
			r.Done, r.Retried = r.Done+on.Acked, r.Retried+on.Retried
			r.Dead, r.Pause = cmp.Or(r.Dead, on.Stored), cmp.Or(r.Pause, on.Pause)
			for state, n := range on.Keys {
				r.Keys[state] += n
			}
			for _, k := range on.Waiting {
				r.Waiting = append(r.Waiting, console.Key{Instance: o.instances[i], KeyStatus: k})
			}
			r.More += on.WaitingMore
		}
		slices.SortStableFunc(r.Waiting, func(x, y console.Key) int { return x.Since.Compare(y.Since) })
		for _, s := range o.stills(now) {
			t := console.Still{State: s.state, Since: cli.KnownTime(s.since), Until: cli.KnownTime(s.until), Why: s.why, By: s.by, Next: s.next, On: s.on}
			if s.state == consumer.RouteWaiting && t.Until != nil {
				t.Next = "one message is tried; all flow when it succeeds" // the page counts down
			}
			r.Still = append(r.Still, t)
		}
		list = append(list, r)
	}
	wrong := func(r console.Route) int { return 2*one(!r.Flows()) + one(len(r.Waiting) > 0) }
	slices.SortStableFunc(list, func(x, y console.Route) int { return wrong(y) - wrong(x) })
	return list
}

func (b *behindConsole) Order(ctx context.Context, order consumer.Order) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cli.ActTimeout)
	defer cancel()
	var notes, said bytes.Buffer
	out, err := giveOrder(ctx, b.cl, order, &notes)
	if err != nil {
		return "", cli.ForConsole(err)
	}
	b.log.Info("an operator did something in the console", "by", order.By, "what", out.what()+" is "+order.State, "why", order.Why)
	out.print(&said)
	return strings.TrimSpace(said.String() + notes.String()), nil
}

func (b *behindConsole) Handover(ctx context.Context, order consumer.HandoverOrder) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	var notes bytes.Buffer
	done, err := handOver(ctx, b.cl, order, &notes)
	switch {
	case errors.Is(err, errStillDrains):
		notes.WriteString(err.Error())
	case err != nil:
		return "", cli.ForConsole(err)
	default:
		notes.WriteString(done.String())
	}
	b.log.Info("an operator did something in the console", "by", order.By, "what", "handover of route "+order.Route, "from", order.From, "to", order.To)
	return notes.String(), nil
}

func (b *behindConsole) Grid(ctx context.Context, answers consumer.Answers) console.Grid {
	view := currentGrid(ctx, b.cl, answers.Instances)
	for _, bad := range answers.Bad {
		view.Notes = append(view.Notes, "an answer was left out: "+bad)
	}
	return view.Grid
}

func (b *behindConsole) Trace(ctx context.Context, message string) (*console.Life, error) {
	l, err := parseTraced(message)
	if err != nil {
		return nil, cli.ForConsole(err)
	}
	cfg := *b.cl.Config
	cfg.Routes = b.running().Routes
	cl := *b.cl
	cl.Config = &cfg
	if err := l.gather(ctx, &cl); err != nil {
		return nil, err
	}
	return &l.Life, nil
}

func (b *behindConsole) Archive() bool { return b.cl.Config.Archive.Outcomes }

func (b *behindConsole) Outcomes(ctx context.Context, stream, route string, most int) (o console.Outcomes, err error) {
	o.List = []console.Outcome{}
	list, back, err := archive.Latest(ctx, b.cl.JS, b.cl.Config.Service, stream, route, most)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return o, nil
	}
	if err != nil {
		return o, fmt.Errorf("the archive: %w", err)
	}
	o.Back = cli.KnownTime(back.UTC())
	for _, f := range list {
		id := ack.Origin{Stream: stream, Consumer: f.Durable, Sequence: f.Sequence, Time: f.Published}.ID()
		o.List = append(o.List, console.Outcome{
			Ended: f.Ended, Message: id, Stream: stream, Sequence: f.Sequence, Outcome: outcomeOf(f), Attempts: f.Attempts, Replay: f.Replay, Instance: f.Instance,
			Result: resultOf(f),
		})
	}
	return o, nil
}

func (b *behindConsole) Retries(ctx context.Context, route string, most int) (list []console.Retry, more bool, err error) {
	r, err := openRetries(ctx, b.cl)
	if err != nil {
		return nil, false, err
	}
	list = []console.Retry{}
	err = r.each(ctx, route, func(m retry) bool {
		if more = len(list) == most; !more {
			list = append(list, console.Retry{
				ID: m.ID, Where: m.Where, Routes: m.Routes, Subject: m.Subject, Attempts: m.Attempts, Due: m.Due, Error: cli.Or(m.Error, m.Fault),
			})
		}
		return !more
	})
	return list, more, err
}

func (b *behindConsole) DeadLetters(ctx context.Context) (*dlq.Store, error) {
	store, err := dlq.Attach(ctx, b.cl.JS, b.cl.Config.Service)
	if errors.Is(err, dlq.ErrNoStream) && errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return store, err
}

// Filter reads a query as if it were flags.
func (b *behindConsole) Filter(ctx context.Context, q url.Values) (dlq.Filter, []string, error) {
	f := dlqFilter{
		route: q.Get("route"), subject: q.Get("subject"), reason: q.Get("reason"), text: q.Get("error"), match: q.Get("error-match"),
		since: q.Get("since"), until: q.Get("until"), attempts: q.Get("attempts"), body: q["body"], given: q.Has,
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

func (b *behindConsole) replayer(ctx context.Context, job *dlq.Job) (*replayer, error) {
	store, err := b.DeadLetters(ctx)
	if err == nil && store == nil {
		err = dlq.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	r := &replayer{cl: b.cl, store: store, job: job, out: io.Discard, errOut: io.Discard}
	r.routes, err = knownRoutes(ctx, b.cl)
	return r, err
}

func (b *behindConsole) Plan(ctx context.Context, job *dlq.Job) (*dlq.Plan, []string, error) {
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
			if note := r.routes.note(route); note != "" {
				notes = append(notes, "route "+route+note)
			}
		}
		if !r.routes.running {
			notes = append(notes, "no instance of relay answers: the messages wait in the retry stream until one runs")
		}
	}
	return plan, notes, nil
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

func (b *behindConsole) Start(ctx context.Context, wanted dlq.Job, body []byte) (id string, err error) {
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
		return "", &console.UsageError{Err: errors.New("nothing is left of what was chosen, or all of it has to stay")}
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
func (b *behindConsole) run(r *replayer, jobs *dlq.Jobs, plan *dlq.Plan) {
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

func (b *behindConsole) Resume(ctx context.Context, id, by string) error {
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

func (b *behindConsole) Discard(ctx context.Context, job *dlq.Job) (int, error) {
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
	err = cli.RecordDiscard(ctx, b.cl, job, len(named), func() (n int, err error) {
		done, err = discardEach(ctx, r.store, named, func() {})
		return done, err
	})
	b.log.Info("an operator discarded dead letters", "by", job.By, "count", done, "record", job.ID)
	return done, err
}

func (b *behindConsole) Jobs(ctx context.Context) (*dlq.Jobs, error) {
	jobs, err := dlq.AttachJobs(ctx, b.cl.JS, b.cl.Config.Service)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil
	}
	return jobs, err
}

func (b *behindConsole) Audit(by, route, text string) {
	b.log.Info("an operator did something in the console", "by", by, "what", text)
	b.cl.Tell(event.Audit, event.Data{Route: route, By: by, Text: text})
}

func (b *behindConsole) Settings() console.Settings {
	cfg := b.cl.Config // what counts only once the process is started again
	now := b.running()
	s := console.Settings{
		Version: version.String(), Service: cfg.Service, File: cfg.Source.File, Hash: now.Source.Hash, Overrides: cfg.Source.Overrides,
		Values: []console.Setting{
			{Key: "nats.url", Value: cli.Or(cfg.NATS.URL.String(), "(embedded)")}, {Key: "nats.replicas", Value: strconv.Itoa(cfg.NATS.Replicas)},
			{Key: "dlq.max_age", Value: cfg.DLQ.MaxAge.String()}, {Key: "dlq.max_bytes", Value: fmt.Sprint(cfg.DLQ.MaxBytes)}, {Key: "dlq.on_full", Value: cfg.DLQ.OnFull},
			{Key: "events.store", Value: strconv.FormatBool(cfg.Events.Store)}, {Key: "archive.outcomes", Value: strconv.FormatBool(cfg.Archive.Outcomes)}, {Key: "drain", Value: now.Drain.String()}, {Key: "ready.stalled", Value: cfg.Ready.Stalled.String()},
		},
	}
	for _, w := range now.Source.Warnings {
		s.Warnings = append(s.Warnings, fmt.Sprint(w))
	}
	for _, rt := range now.Routes {
		r := rt.Route.WithDefaults()
		var delays []string
		for _, a := range timeline(r.Retry.Backoff, r.Retry.MaxAttempts, r.Retry.MaxAge, r.Retry.ParkAfter) {
			if a.Number > 1 && len(delays) < shownDelays {
				delays = append(delays, a.After)
			}
		}
		attempts := strconv.Itoa(r.Retry.MaxAttempts)
		if r.Retry.MaxAttempts < 0 {
			attempts = "no bound"
		}
		trip := r.Supervisor.RouteTrip
		s.Routes = append(s.Routes, console.RouteSetting{Name: r.Name, Values: []console.Setting{
			{Key: "handler", Value: rt.Handler.String()}, {Key: "subjects", Value: strings.Join(r.Subjects, ", ")}, {Key: "concurrency", Value: strconv.Itoa(r.Concurrency)},
			{Key: "key, order", Value: r.Key + ", " + string(r.Order)}, {Key: "timeout, ack_wait", Value: r.Timeout.String() + ", " + r.AckWait.String()},
			{Key: "attempts", Value: attempts + ", within " + r.Retry.MaxAge.String()}, {Key: "retries after", Value: strings.Join(delays, ", ") + ", …"},
			{Key: "key waits after", Value: fmt.Sprintf("%d failures in a row", *r.Supervisor.TripAfter)},
			{Key: "route waits when", Value: fmt.Sprintf("%g %% of %d fail, over %d keys", 100*trip.Share, *trip.Of, trip.Keys)},
			{Key: "stash", Value: fmt.Sprintf("%d messages", r.Stash.Messages)}, {Key: "fallback", Value: fallbackOf(rt)},
		}})
	}
	return s
}
