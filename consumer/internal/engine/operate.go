package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/consumer/internal/operators"
	"github.com/relaymq/relay/consumer/internal/roster"
	letters "github.com/relaymq/relay/internal/dlq"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// Pause lets nothing of a route, or of a key of it, start until Resume, on every instance. It returns when the order is stored and this instance follows it.
func (r *Engine) Pause(ctx context.Context, route, key string) error {
	_, err := r.operate(ctx, route, key, orders.Paused)
	return err
}

// Resume ends at once, on every instance, whatever keeps the messages of a route, or of a key of it, from starting. It returns when the order is stored and
// this instance follows it.
func (r *Engine) Resume(ctx context.Context, route, key string) error {
	order, err := r.operate(ctx, route, key, orders.Running)
	if err != nil {
		return err
	}
	if _, _, err = control.Wake(ctx, r.Conn, r.Config.Service, order); err != nil && !errors.Is(err, control.ErrNobody) {
		return fmt.Errorf("the order is stored, but waits could not be ended: %w", err)
	}
	return nil
}

// operate gives an order, and waits until this instance follows it.
func (r *Engine) operate(ctx context.Context, route, key, state string) (orders.Order, error) {
	order := orders.Order{Route: route, State: state, By: "the program of " + r.Config.Instance, At: time.Now().UTC()}
	if key != "" {
		order.Key = []byte(key)
	}
	if r.Routes.Named(route) == nil {
		return order, fmt.Errorf("there is no route %q here", route)
	}
	if !r.Phases.Serving.Load() {
		return order, roster.ErrNotRunning
	}
	followed, err := r.orders.Give(ctx, order, r.Phases.Ends.Done())
	if err == nil && !followed {
		err = fmt.Errorf("the order is stored: %w", roster.ErrNotRunning)
	}
	return order, err
}

// Replay hands dead letters back to the routes of this engine that failed, and returns when the job is done.
func (r *Engine) Replay(ctx context.Context, job letters.Job) (letters.Progress, error) {
	if err := job.Check(); err != nil {
		return letters.Progress{}, err
	}
	store, err := letters.Attach(ctx, r.JS, r.Config.Service)
	if err != nil {
		return letters.Progress{}, err
	}
	choice := letters.Choice{Filter: job.Filter, Numbers: job.Numbers, Subject: job.Subject, Key: r.Routes.keyOfEntry}
	if job.Subject == "" {
		choice.Refuse, choice.ToRoute = r.Routes.refuseEntry, true
	}
	plan, err := store.Plan(ctx, choice)
	if err != nil {
		return letters.Progress{}, err
	}
	now := time.Now()
	job.State, job.Created = letters.JobRunning, now.UTC()
	job.By, job.Runner = "the program of "+r.Config.Instance, r.Config.Instance
	job.Total, job.Routes, job.Oldest, job.Newest, job.Last = plan.Total+plan.Refused, plan.Routes, plan.Oldest, plan.Newest, plan.Last
	last := letters.Progress{Job: job}
	if plan.Total == 0 {
		last.Refused, last.Refusals, last.Reasons = plan.Refused, plan.Refusals, plan.Reasons
		return last, nil
	}
	job.ID = letters.NewJobID(now)
	jobs, err := letters.OpenJobs(ctx, r.JS, r.Config.Service, r.Config.Replicas)
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
	rt := l.Named(e.Route)
	if rt == nil {
		return "this relay has no route " + e.Route
	}
	if stream := rt.OriginStream(); stream != "" && stream != e.Stream {
		return fmt.Sprintf("route %s of this relay reads stream %s, and the message is of stream %s", e.Route, stream, e.Stream)
	}
	return ""
}

// keyOfEntry is what the route of a dead letter supervises together.
func (l *routeList) keyOfEntry(e letters.Entry) string {
	if rt := l.Named(e.Route); rt != nil {
		return rt.KeyOf(e.Subject)
	}
	return e.Subject
}

// handover gives a route away, or leaves it to others.
func (l *routeList) handover(order control.HandoverOrder) (out control.HandedOver) {
	rt := l.Named(order.Route)
	if rt != nil && rt.Name() != order.Route {
		rt = nil
	}
	switch {
	case rt == nil:
		return out
	case rt.Spec.Part != nil:
		out.Refused = "the route has partitions, which move between instances by themselves"
		return out
	case !rt.Spec.Leased():
		out.Refused = "all instances handle messages of the route, so there is nothing to hand over"
		return out
	case rt.Home.Fleet.Now() == nil:
		out.Refused = "this instance does not know the other instances yet"
		return out
	}
	u := unitOf(rt)
	if u == nil {
		out.Refused = "the route is starting"
		return out
	}
	h := u.tenure.Order(order, rt.Holder().Standbys)
	out.Giving, out.Resting, out.Refused = h.Giving, h.Resting, h.Refused
	if out.Giving {
		rt.Log.Info("handing the route over, as an operator ordered", "by", order.By, "to", order.To)
		u.handOver()
	}
	return out
}

// handOver ends the work on a unit, with a drain, and stands by again.
func (u *Unit) handOver() {
	r := u.engine
	r.Running.Change(u, func() {
		if err := restart(r.Phases.Ends, r, u); err != nil && !errors.Is(err, roster.ErrNotRunning) {
			u.Main.Log().Warn("the route was not handed over; this instance keeps it", "error", err)
			u.tenure.Keep()
		}
	})
}

// obey has the routes obey an order that is for them.
func (l *routeList) obey(order orders.Order) {
	for _, rt := range l.called(order.Route) {
		rt.Standstill.Obey(order)
	}
}

// wake ends waits for an operator.
func (l *routeList) wake(order orders.Order) (w control.Woken) {
	for _, rt := range l.called(order.Route) {
		w.Known = true
		operators.Waits{Group: rt.Group, Log: rt.Log, Own: rt.OwnLimit(), Condition: rt.Standstill.Condition}.End(order, &w)
	}
	return w
}
