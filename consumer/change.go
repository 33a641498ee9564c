package consumer

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/internal/control"
)

// How routes change while relay runs. A change is checked in full first: the routes by themselves and with those that stay, their
// handlers, their streams and durables on the server, what may be done to them. Until then nothing has changed. Then it is
// made, and from there on nothing can fail that does not pass by itself. Handlers in flight are not waited for before, nor are
// routes that do not change.
//
// A unit is what begins and ends (unit.go): routes that share a durable begin and end together.

// ErrNotRunning says that routes cannot change now: Run has not started them yet, or is ending.
var ErrNotRunning = roster.ErrNotRunning

// Change is what changes of the routes of a running [Relay], at once. Zero changes nothing.
type Change struct {
	// Add are routes with names that do not exist yet.
	Add []Route
	// Update are routes with names that exist. A route that differs only in Concurrency, Rate, Burst, Timeout, Retry, Supervisor, Stash,
	// Batch, Use, and its handlers, which are of the same types, changes in place. Any other route ends and begins again as given here.
	Update []Route
	// Remove are names of routes that end.
	Remove []string
	// Limits are those that hold from then on; nil: as before.
	Limits map[string]Limit
	// DeliverAgain permits making a durable that, with start: all, delivers messages that were handled before, for example after a route
	// was renamed. Without it such a change is refused.
	DeliverAgain bool
	anew         bool // nothing is changed in place
}

func (c Change) names() []string {
	return append(namesOf(slices.Concat(c.Add, c.Update)), c.Remove...)
}

func namesOf(routes []Route) (list []string) {
	for _, rt := range routes {
		list = append(list, rt.Name)
	}
	return list
}

// Changed is what became of a [Change].
type Changed struct {
	Added   []string `json:"added,omitempty"`
	Updated []string `json:"updated,omitempty"`
	// Live are those of Updated that changed in place: they did not stop, and handlers in flight go on.
	Live []string `json:"live,omitempty"`
	// Restarted routes began anew because they share a durable with one that changed.
	Restarted []string  `json:"restarted,omitempty"`
	Removed   []Removed `json:"removed,omitempty"`
	// Waiting are routes that changed and are not pulled from yet, and why. They continue by themselves.
	Waiting map[string]string `json:"waiting,omitempty"`
	// Interrupted handlers of routes that ended did not end within the drain. They spent no attempt.
	Interrupted int `json:"interrupted,omitempty"`
}

// Removed is a route that has ended, and what is left of it: nothing is removed from the server.
type Removed struct {
	Route   string `json:"route"`
	Stream  string `json:"stream,omitempty"`
	Durable string `json:"durable"`
	// Copies is the stream of its partitions, which stays, and to which the server goes on copying; empty: it had none.
	Copies string `json:"copies,omitempty"`
	// Backlog is what waited for it when it ended; nil when that is not known.
	Backlog *control.Backlog `json:"backlog,omitempty"`
	// DeadLetters of it are stored; nil when that is not known.
	DeadLetters *int `json:"dead_letters,omitempty"`
}

// Add begins a route while the others go on. See [Relay.Change].
func (r *Relay) Add(ctx context.Context, rt Route) error {
	_, err := r.Change(ctx, Change{Add: []Route{rt}})
	return err
}

// Update changes the route of that name to what is given: in place, or by ending it and beginning it again, as [Change.Update] says. In place,
// a handler that is another object is started before it is used, and the former one is stopped when its last run has ended, or was interrupted
// after [Config.Drain]. A route that ends gives back the messages that wait, and they are redelivered. Its handler may be the same object; it
// is stopped and started again where it implements that. See [Relay.Change].
func (r *Relay) Update(ctx context.Context, rt Route) (Changed, error) {
	return r.Change(ctx, Change{Update: []Route{rt}})
}

// Remove ends a route. Its durable, its parked messages and its dead letters stay, and are named. See [Relay.Change].
func (r *Relay) Remove(ctx context.Context, name string) (Removed, error) {
	done, err := r.Change(ctx, Change{Remove: []string{name}})
	if err != nil {
		return Removed{}, err
	}
	return done.Removed[0], nil
}

// Check tells what is wrong with a change, and changes nothing. It is what [Relay.Change] does first.
func (r *Relay) Check(ctx context.Context, c Change) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	is, err := r.divided.expand(ctx, c, generations.CheckOnly)
	if err != nil {
		return err
	}
	p, err := r.plot(ctx, is.Change)
	if err == nil {
		p.discard()
	}
	return err
}

// Change changes routes. An error means that nothing has changed: one that is [ErrNotRunning], or *[SetupError]s joined. Until
// it is made, ctx bounds the change. Then routes that end drain as relay does at its end, at most for [Config.Drain], and
// those that begin wait for those that they replace. Change returns when that is done and the durables of the routes that began are open, or
// were tried once. It is safe for concurrent use; changes are made one after the other.
func (r *Relay) Change(ctx context.Context, c Change) (Changed, error) {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return Changed{}, err
	}
	defer leave()
	is, err := r.divided.expand(ctx, c, generations.MakeWanted)
	if err != nil {
		return Changed{}, err
	}
	p, err := r.plot(ctx, is.Change)
	if err != nil {
		return Changed{}, err
	}
	if err := p.prepareAll(ctx); err != nil {
		return Changed{}, err
	}
	if !p.commit() {
		p.undo(ctx)
		return Changed{}, ErrNotRunning
	}
	done := p.run()
	r.divided.made(is)
	return done.outward(c, is), nil
}

// enterChange waits for the change before this one.
func (r *Relay) enterChange(ctx context.Context) (leave func(), err error) {
	if !r.phases.serving.Load() {
		return nil, ErrNotRunning
	}
	return r.running.Enter(ctx, r.phases.ends)
}

// enter has the parts that all routes share know of a route.
func (r *Relay) enter(rt *route) {
	r.routes.metrics.Enter(rt.name(), &rt.count.RouteCount)
	r.enterLimits(rt.cfg)
	r.link.Cover(rt.cfg.AckWait)
	r.events.Mute(rt.cfg.Name, rt.handlesEvents())
	if rt.cfg.Leased() {
		r.membership.Need()
	}
	if rt.guarded {
		if l := r.stores.Lives.Load(); l != nil {
			l.Cover(rt.cfg.AckWait)
		}
		r.solo.Add(rt.group)
	}
}

// commit makes the change. It returns false, and does nothing, when relay drains.
func (p *plot) commit() bool {
	r := p.relay
	for _, u := range p.begins {
		u.prepare()
		for _, s := range u.sources() {
			for _, old := range sourcesOf(p.ends) {
				if s.String() == old.String() {
					s.count = old.count
				}
			}
		}
	}
	for _, name := range p.change.Remove {
		p.removed = append(p.removed, p.before[name].rest())
	}
	return r.running.Commit(p.ends, func() {
		for name, before := range p.before {
			if rt := p.after[name]; rt != nil {
				rt.successor.follow(before, time.Now())
			}
		}
		left, list := maps.Clone(p.after), []*route(nil)
		for _, rt := range r.routes.all() {
			name := rt.cfg.Name
			switch next := left[name]; {
			case next != nil:
				list = append(list, next)
				delete(left, name)
			case p.before[name] == nil:
				list = append(list, rt)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(left)) {
			list = append(list, left[name])
		}
		var end []*route
		for _, name := range p.change.Remove {
			end = append(end, p.before[name])
		}
		r.routes.replace(list, end)
		r.limits.Book().Accept()
		if p.change.Limits != nil {
			r.limits.Replace(p.change.Limits)
		}
	})
}

// make commits the change and runs it.
func (p *plot) make() error {
	if !p.commit() {
		return ErrNotRunning
	}
	p.run()
	return nil
}

// run ends what ends and begins what begins.
func (p *plot) run() Changed {
	r := p.relay
	for _, name := range slices.Sorted(maps.Keys(p.lives)) {
		p.lives[name].make()
	}
	for _, rt := range p.after {
		r.enter(rt)
		r.orders.Join(rt.name(), rt.obey)
	}
	counts := make([]int, len(p.ends))
	ended := make(map[*unit]chan struct{})
	for _, u := range p.ends {
		ended[u] = make(chan struct{})
	}
	var work sync.WaitGroup
	for i, u := range p.ends {
		work.Go(func() {
			defer close(ended[u])
			counts[i] = u.close()
		})
	}
	for _, u := range p.begins {
		work.Go(func() {
			for _, old := range p.ends {
				if u.main.String() == old.main.String() || slices.ContainsFunc(old.main.routes, func(rt *route) bool { return u.main.serves(p.after[rt.cfg.Name]) }) {
					<-ended[old]
				}
			}
			for _, rt := range u.main.routes {
				if old := p.before[rt.cfg.Name]; old != nil && !rt.handsOver() {
					rt.group.Inherit(old.group)
				}
			}
			if u.leased() { // it is opened when this instance has the claim, and what is published from now on is its durable's
				u.main.setup.err = u.main.openLate(u.work, setupTimeout)
			}
			u.begin()
			<-u.tried
			for _, rt := range u.main.routes {
				rt.successor.end()
			}
		})
	}
	work.Wait()
	done := Changed{Added: namesOf(p.change.Add), Updated: namesOf(p.change.Update), Removed: p.removed, Waiting: map[string]string{}}
	done.Live = slices.Sorted(maps.Keys(p.lives))
	names := p.change.names()
	for _, name := range slices.Sorted(maps.Keys(p.after)) {
		if !slices.Contains(names, name) {
			done.Restarted = append(done.Restarted, name)
		}
		if err := p.after[name].troubles.Err(); err != nil {
			done.Waiting[name] = err.Error()
		}
	}
	for _, n := range counts {
		done.Interrupted += n
	}
	for _, name := range p.change.Remove {
		if called := p.before[name].name(); len(r.routes.called(called)) == 0 {
			r.routes.metrics.Forget(called)
			r.limits.RemoveOwn(called)
		}
	}
	r.log.Info("routes changed", "added", done.Added, "updated", done.Updated, "live", done.Live, "restarted", done.Restarted, "removed", p.change.Remove,
		"interrupted", done.Interrupted)
	return done
}

// close ends a unit while others run. It returns how many handlers were interrupted.
func (u *unit) close() int {
	ctx, cancel := context.WithTimeout(u.work, u.relay.phases.drainTime())
	defer cancel()
	u.stopPulling()
	interrupted := u.drain(ctx)
	// Only this route knows the messages that it put aside. Its successor gets them at once, and may put them aside again.
	for _, rt := range u.main.routes {
		rt.group.CallBackAll()
	}
	// Messages whose give-back is not confirmed come again only after AckWait.
	confirm, cancelConfirm := context.WithTimeout(u.work, askTimeout)
	defer cancelConfirm()
	u.confirm(confirm)
	lastTallies([]*unit{u}, askTimeout)
	u.end()
	return interrupted
}

// rest is what is left of the route once it has ended.
func (rt *route) rest() Removed {
	left := Removed{Route: rt.cfg.Name, Durable: rt.cfg.Durable, Stream: rt.cfg.Stream, Backlog: rt.backlog()}
	if u := rt.unit.Load(); u != nil { // also when the durable could not be opened yet
		left.Stream = u.main.stream
	}
	if n, known := rt.relay.upkeep.Dead(rt.name()); known {
		left.DeadLetters = &n
	}
	return left
}
