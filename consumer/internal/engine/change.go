package engine

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/reload"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/transient"
)

// How routes change while relay runs. A change is checked in full first: the routes by themselves and with those that stay, their
// handlers, their streams and durables on the server, what may be done to them. Until then nothing has changed. Then it is
// made, and from there on nothing can fail that does not pass by itself. Handlers in flight are not waited for before, nor are
// routes that do not change.
//
// A unit is what begins and ends (unit.go): routes that share a durable begin and end together.

// Change is what changes of the routes of an Engine that runs, at once.
type Change struct {
	Add    []route.Spec // with names that do not exist yet
	Update []route.Spec // with names that exist
	Remove []string
	// Limits are those that hold from then on; nil: as before.
	Limits map[string]limits.Limit
	// DeliverAgain permits making a durable that, with start: all, delivers messages that were handled before.
	DeliverAgain bool

	anew bool // nothing is changed in place
}

func (c Change) byName() reload.Change {
	return reload.Change{Add: namesOf(c.Add), Update: namesOf(c.Update), Remove: c.Remove}
}

func (c Change) names() []string { return c.byName().Names() }

func namesOf(routes []route.Spec) (list []string) {
	for _, rt := range routes {
		list = append(list, rt.Name)
	}
	return list
}

// Changed is what became of a change.
type Changed struct {
	Added, Updated []string
	Live           []string // those of Updated that changed in place
	Restarted      []string // began anew because they share a durable with one that changed
	Removed        []Removed
	Waiting        map[string]string // changed and are not pulled from yet, and why
	Interrupted    int               // handlers of routes that ended
}

// Removed is a route that has ended, and what is left of it.
type Removed struct {
	Route       string
	Stream      string
	Durable     string
	Copies      string           // the stream of its partitions; empty: it had none
	Backlog     *control.Backlog // nil: not known
	DeadLetters *int             // stored; nil: not known
}

// Check tells what is wrong with a change, and changes nothing. It is what [Engine.Change] does first.
func (r *Engine) Check(ctx context.Context, c Change) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	is, err := r.Divided.expand(ctx, c, generations.CheckOnly)
	if err != nil {
		return err
	}
	p, err := is.Change.check(ctx, r)
	if err == nil {
		p.discard()
	}
	return err
}

// Change changes routes, and returns when that is done and the durables of the routes that began are open, or were tried once. An error means that nothing
// has changed. It is safe for concurrent use; changes are made one after the other.
func (r *Engine) Change(ctx context.Context, c Change) (done Changed, err error) {
	defer func() { err = transient.Plain(err) }()
	leave, err := r.enterChange(ctx)
	if err != nil {
		return Changed{}, err
	}
	defer leave()
	is, err := r.Divided.expand(ctx, c, generations.MakeWanted)
	if err != nil {
		return Changed{}, err
	}
	p, err := is.Change.check(ctx, r)
	if err != nil {
		return Changed{}, err
	}
	if err := p.prepareAll(ctx); err != nil {
		return Changed{}, err
	}
	if !p.commit() {
		p.undo(ctx)
		return Changed{}, roster.ErrNotRunning
	}
	done = p.run()
	r.Divided.made(is)
	return done.outward(c, is), nil
}

// enterChange waits for the change before this one.
func (r *Engine) enterChange(ctx context.Context) (leave func(), err error) {
	if !r.Phases.Serving.Load() {
		return nil, roster.ErrNotRunning
	}
	return r.Running.Enter(ctx, r.Phases.Ends)
}

// enter has the parts that all routes share know of a route.
func (r *Engine) enter(rt *route.Route) {
	r.Routes.metrics.Enter(rt.Name(), &rt.Count.RouteCount)
	rt.Spec.EnterLimits(r.Bounds)
	r.Link.Cover(rt.Spec.AckWait)
	if rt.Spec.HandlesEvents(r.Config.Service) {
		r.Reports.Mute(rt.Spec.Name)
	} else {
		r.Reports.Unmute(rt.Spec.Name)
	}
	if rt.Spec.Leased() {
		r.Membership.Need()
	}
	if rt.Guarded {
		if l := r.Stores.Lives.Load(); l != nil {
			l.Cover(rt.Spec.AckWait)
		}
		r.Solo.Add(rt.Group)
	}
}
