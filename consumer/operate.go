package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/control"
	letters "github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/orders"
)

// The commands of operators, for programs.

// Pause lets nothing of a route start until [Relay.Resume], or with a key nothing of that key: on every instance, and over restarts, as
// the command relay pause does. Handlers that run finish. An empty key means the whole route. It returns when the order is stored and
// this instance follows it.
func (r *Relay) Pause(ctx context.Context, route, key string) error {
	_, err := r.operate(ctx, route, key, orders.Paused)
	return err
}

// Resume ends at once, on every instance, whatever keeps the messages of a route from starting, as the command relay resume does: a
// pause, also of single keys, the wait after failures, a suspension, a stop. With a key it does so for that key alone. It returns when
// the order is stored and this instance follows it.
func (r *Relay) Resume(ctx context.Context, route, key string) error {
	order, err := r.operate(ctx, route, key, orders.Running)
	if err != nil {
		return err
	}
	if _, _, err = control.Wake(ctx, r.nc, r.cfg.Service, order); err != nil && !errors.Is(err, control.ErrNobody) {
		return fmt.Errorf("the order is stored, but waits could not be ended: %w", err)
	}
	return nil
}

// operate gives an order, and waits until this instance follows it.
func (r *Relay) operate(ctx context.Context, route, key, state string) (orders.Order, error) {
	order := orders.Order{Route: route, State: state, By: "the program of " + r.cfg.Instance, At: time.Now().UTC()}
	if key != "" {
		order.Key = []byte(key)
	}
	if r.routes.named(route) == nil {
		return order, fmt.Errorf("there is no route %q here", route)
	}
	if !r.phases.serving.Load() {
		return order, ErrNotRunning
	}
	followed, err := r.orders.Give(ctx, order, r.phases.ends.Done())
	if err == nil && !followed {
		err = fmt.Errorf("the order is stored: %w", ErrNotRunning)
	}
	return order, err
}

// Replay hands dead letters back to the routes of this relay that failed, as the command relay dlq replay does, and returns when all
// are handed over and, where the job waits for what becomes of them, that is known. Dead letters of routes that this relay does not have, and of streams
// that these routes do not read, stay, and count as Refused. Without any that match, nothing is done and the id of the job is empty.
//
// The job is recorded, so that the command relay replay shows and cancels it; whatever stops it loses nothing. The error is ErrJobCancelled of
// package dlq, or a StoppedError of it with what stopped the job, beside those of the server.
func (r *Relay) Replay(ctx context.Context, job dlq.Job) (dlq.Progress, error) {
	did, err := r.replay(ctx, letters.Job{
		Filter: letters.Filter(job.Filter), Numbers: job.Numbers, Subject: job.Subject,
		Rate: job.Rate, Staged: job.Staged, StopAfter: job.StopAfter, Wait: job.Wait,
	})
	return dlq.Progress{
		ID: did.ID, Total: did.Total, Routes: did.Routes, Oldest: did.Oldest, Newest: did.Newest,
		Handed: did.Handed, Gone: did.Gone, Refused: did.Refused, Reasons: did.Reasons,
		Succeeded: did.Verdicts.OK, Failed: did.Verdicts.Failed, Lost: did.Lost,
	}, err
}

func (r *Relay) replay(ctx context.Context, job letters.Job) (letters.Progress, error) {
	if err := job.Check(); err != nil {
		return letters.Progress{}, err
	}
	store, err := letters.Attach(ctx, r.js, r.cfg.Service)
	if err != nil {
		return letters.Progress{}, err
	}
	choice := letters.Choice{Filter: job.Filter, Numbers: job.Numbers, Subject: job.Subject, Key: r.routes.keyOfEntry}
	if job.Subject == "" {
		choice.Refuse, choice.ToRoute = r.routes.refuseEntry, true
	}
	plan, err := store.Plan(ctx, choice)
	if err != nil {
		return letters.Progress{}, err
	}
	now := time.Now()
	job.State, job.Created = letters.JobRunning, now.UTC()
	job.By, job.Runner = "the program of "+r.cfg.Instance, r.cfg.Instance
	job.Total, job.Routes, job.Oldest, job.Newest, job.Last = plan.Total+plan.Refused, plan.Routes, plan.Oldest, plan.Newest, plan.Last
	last := letters.Progress{Job: job}
	if plan.Total == 0 {
		last.Refused, last.Refusals, last.Reasons = plan.Refused, plan.Refusals, plan.Reasons
		return last, nil
	}
	job.ID = letters.NewJobID(now)
	jobs, err := letters.OpenJobs(ctx, r.js, r.cfg.Service, r.cfg.Replicas)
	if err != nil {
		return letters.Progress{}, err
	}
	if err = jobs.Create(ctx, &job); err != nil {
		return letters.Progress{}, err
	}
	run := letters.Run{Store: store, Jobs: jobs, Job: &job, Plan: plan, Runner: job.Runner, Progress: func(p letters.Progress) { last = p }}
	err = run.Do(ctx)
	return last, err
}

// refuseEntry says why a dead letter cannot be replayed here, or nothing.
func (l *routeList) refuseEntry(e letters.Entry) string {
	rt := l.named(e.Route)
	if rt == nil {
		return "this relay has no route " + e.Route
	}
	if u := rt.unit.Load(); u != nil && rt.cfg.originStream(u) != e.Stream {
		return fmt.Sprintf("route %s of this relay reads stream %s, and the message is of stream %s", e.Route, rt.cfg.originStream(u), e.Stream)
	}
	return ""
}

// keyOfEntry is what the route of a dead letter supervises together.
func (l *routeList) keyOfEntry(e letters.Entry) string {
	if rt := l.named(e.Route); rt != nil {
		return rt.keyOf(e.Subject)
	}
	return e.Subject
}
