package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
)

// How routes change while relay runs. A change is checked in full first: the routes by themselves and with those that stay, their
// handlers, their streams and durables on the server, what may be done to them. Until then nothing has changed. Then it is
// made, and from there on nothing can fail that does not pass by itself. Handlers in flight are not waited for before, nor are
// routes that do not change.
//
// A unit is what begins and ends (unit.go): routes that share a durable begin and end together.

// ErrNotRunning says that routes cannot change now: Run has not got that far, or is ending.
var ErrNotRunning = errors.New("relay is not running")

// Change is what changes of the routes of a running [Relay], at once. Zero changes nothing.
type Change struct {
	// Add are routes of names that are not there.
	Add []Route
	// Update are routes of names that are there. One that differs in nothing but Concurrency, Rate, Burst, Timeout, Retry, Supervisor, Stash,
	// Batch, Use, and its handlers, which are of the same types, changes in place. Each other one ends, and begins anew as it is here.
	Update []Route
	// Remove are names of routes that end.
	Remove []string
	// Limits are those that hold from then on; nil: as before.
	Limits map[string]Limit
	// DeliverAgain permits that a durable is made which with start: all delivers what was handled before, as after a route was renamed.
	// Without it such a change is refused.
	DeliverAgain bool
	anew         bool // nothing is changed in place
}

func (c Change) names() (list []string) {
	for _, rt := range slices.Concat(c.Add, c.Update) {
		list = append(list, rt.Name)
	}
	return append(list, c.Remove...)
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
	// Waiting are routes that changed and are not pulled from yet, and why: they go on by themselves.
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

// Update has the route of that name be as it is given: in place, or by ending it and beginning it anew, as [Change.Update] says. In place, a
// handler that is another object is started before it is used, and the former one stopped when its last run has ended, or was interrupted after
// [Config.Drain]. A route that ends gives back the messages that wait, which come again; its handler may be the same object, and is stopped
// and started if it can be. See [Relay.Change].
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
	is, err := r.expand(ctx, c, false, false)
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
	is, err := r.expand(ctx, c, false, true)
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
	if !r.commit(p) {
		p.undo(ctx)
		return Changed{}, ErrNotRunning
	}
	done := p.run()
	r.made(is)
	return done.outward(r, c, is), nil
}

// enterChange waits for the change before this one.
func (r *Relay) enterChange(ctx context.Context) (leave func(), err error) {
	r.mu.Lock()
	ok := r.serving.Load() && !r.draining
	if ok {
		r.changes.Add(1)
	}
	r.mu.Unlock()
	if !ok {
		return nil, ErrNotRunning
	}
	select {
	case r.changing <- struct{}{}:
	case <-ctx.Done():
		r.changes.Done()
		return nil, fmt.Errorf("another change is still in progress: %w", context.Cause(ctx))
	case <-r.ends.Done():
		r.changes.Done()
		return nil, ErrNotRunning
	}
	return func() {
		<-r.changing
		r.changes.Done()
	}, nil
}

// plot is a change that was checked.
type plot struct {
	relay   *Relay
	change  Change
	ends    []*unit
	begins  []*unit
	before  map[string]*route // those that end
	after   map[string]*route // those that begin
	removed []Removed
	lives   map[string]*becoming // what changes in place
}

// plot checks a change. What it makes on the server is of no effect by itself: a subject more of the dead letters, and the entry of
// this process among those that run Go handlers.
func (r *Relay) plot(ctx context.Context, c Change) (*plot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ends, cancel)()
	r.listings.forget()
	p := &plot{relay: r, change: c, before: map[string]*route{}, after: map[string]*route{}}
	limits := c.Limits
	if limits == nil {
		limits = r.Limits()
	}
	cfgs, err := r.together(c, limits)
	if err != nil {
		return nil, err
	}
	p.lives = r.becomings(c, cfgs)
	for name := range p.lives {
		delete(cfgs, name)
	}
	// The durables that the routes are to read, which may be those of others.
	places := make(map[string]string) // of the durable, by route
	for name, cfg := range cfgs {
		var stream string
		err := r.attempt(ctx, func(ctx context.Context) (err error) {
			stream, err = r.streamOf(ctx, cfg)
			return err
		})
		if err != nil {
			return nil, setupError(name, err)
		}
		places[name] = stream + "/" + cfg.Durable
	}
	names := slices.DeleteFunc(c.names(), func(name string) bool { return p.lives[name] != nil })
	r.mu.Lock()
	for _, u := range r.units {
		shares := slices.ContainsFunc(u.main.routes, func(rt *route) bool { return slices.Contains(names, rt.cfg.Name) })
		for _, place := range places {
			shares = shares || place == u.main.String()
		}
		if shares {
			p.ends = append(p.ends, u)
		}
	}
	r.mu.Unlock()
	for _, rt := range r.all() {
		if rt.isUnplaced() && slices.Contains(names, rt.cfg.Name) {
			p.before[rt.cfg.Name] = rt
		}
	}
	for _, u := range p.ends {
		for _, rt := range u.main.routes {
			p.before[rt.cfg.Name] = rt
			if b := p.lives[rt.cfg.Name]; b != nil { // it begins anew with others
				cfgs[rt.cfg.Name] = b.cfg
				names = append(names, rt.cfg.Name)
				delete(p.lives, rt.cfg.Name)
			}
			if _, given := cfgs[rt.cfg.Name]; !given && !slices.Contains(c.Remove, rt.cfg.Name) {
				cfgs[rt.cfg.Name] = *rt.now()
			}
		}
	}
	var list []*route
	for _, name := range slices.Sorted(maps.Keys(cfgs)) {
		rt := newRoute(r, cfgs[name], limits)
		if old := p.before[name]; old != nil {
			rt.count, rt.ackWaitBefore = old.count, old.ackWaitBefore
			if old.cfg.AckWait != rt.cfg.AckWait {
				rt.ackWaitBefore = old.cfg.AckWait
			}
		}
		p.after[name] = rt
		list = append(list, rt)
	}
	units, without, faults := r.plan(ctx, list, r.once)
	faults = append(faults, faultsOf(without)...)
	for _, rt := range list {
		if slices.Contains(names, rt.cfg.Name) && !rt.cfg.isCopy() {
			if err := checkHandler(ctx, *rt.now()); err != nil {
				faults = append(faults, &SetupError{rt.cfg.Name, err})
			}
		}
		for _, u := range r.staying(p) {
			for _, n := range units {
				if n.main.serves(rt) && n.main.stream == u.main.stream {
					faults = append(faults, overlaps(u.main, rt, false)...)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.lives)) {
		if err := checkHandler(ctx, p.lives[name].cfg); err != nil {
			faults = append(faults, &SetupError{name, err})
		}
	}
	err = errors.Join(faults...)
	if p.begins = units; err == nil && len(list) > 0 {
		err = p.preflight(ctx, list)
	}
	if err != nil {
		p.discard()
		return nil, err
	}
	return p, nil
}

// together checks the routes of a change by themselves and returns those that are given, by name.
func (r *Relay) together(c Change, limits map[string]Limit) (map[string]Route, error) {
	there := make(map[string]bool)
	for _, rt := range r.all() {
		there[rt.cfg.Name] = true
	}
	cfgs, seen := make(map[string]Route), make(map[string]bool)
	faults := checkedLimits(limits)
	fault := func(name, format string, args ...any) { //nolint:unparam // as fault is everywhere
		faults = append(faults, &SetupError{name, fmt.Errorf(format, args...)})
	}
	for i, cfg := range slices.Concat(c.Add, c.Update) {
		cfg, err := checked(cfg)
		if err != nil {
			faults = append(faults, err)
		}
		if err := cfg.CheckLimits(limits); err != nil {
			faults = append(faults, &SetupError{cfg.Name, err})
		}
		if add := i < len(c.Add); add && there[cfg.Name] {
			fault(cfg.Name, "this instance already has a route of this name: update it, or remove it first")
		} else if !add && !there[cfg.Name] {
			fault(cfg.Name, "this instance has no route of this name: add it")
		}
		cfgs[cfg.Name] = cfg
	}
	for _, name := range c.Remove {
		if !there[name] {
			fault(name, "is not there")
		}
	}
	for _, name := range c.names() {
		if seen[name] {
			fault(name, "is named twice in one change")
		}
		seen[name] = true
	}
	for _, rt := range r.all() {
		if slices.Contains(c.names(), rt.cfg.Name) {
			continue
		}
		if err := rt.cfg.CheckLimits(limits); err != nil {
			faults = append(faults, &SetupError{rt.cfg.Name, err})
		}
	}
	return cfgs, errors.Join(faults...)
}

// staying are the units that a change leaves alone.
func (r *Relay) staying(p *plot) []*unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.units), func(u *unit) bool { return slices.Contains(p.ends, u) })
}

// preflight looks at what is on the server.
func (p *plot) preflight(ctx context.Context, list []*route) error {
	r := p.relay
	sources := sourcesOf(p.begins)
	r.sideBySide(ctx, sources, lookAt)
	r.lookTwice(ctx, sources)
	var faults []error
	for _, s := range sources {
		if s.setup.err != nil {
			faults = append(faults, setupError(s.routes[0].cfg.Name, s.setup.err))
		} else if !p.change.DeliverAgain {
			faults = append(faults, s.setup.repeats()...)
		}
	}
	if err := setupError("", faults...); err != nil || ctx.Err() != nil {
		return cmp.Or(err, context.Cause(ctx))
	}
	if err := r.checkPermissions(ctx, sources, false); err != nil {
		return setupError("", err)
	}
	if all, here := r.deadConfigOf(append(slices.Clone(r.all()), list...)), r.deadConfig(); len(all.Prefixes) > len(here.Prefixes) {
		if _, err := dlq.Open(ctx, r.js, all); err != nil {
			return setupError("", err)
		}
	}
	return nil
}

// enter has the parts that all routes share know of a route.
func (r *Relay) enter(rt *route) {
	r.metrics.of(rt)
	r.enterLimits(rt.cfg)
	r.link.Cover(rt.cfg.AckWait)
	r.events.Mute(rt.cfg.Name, rt.handlesEvents())
	if rt.cfg.Leased() {
		r.grid.need()
	}
	if rt.guarded {
		if l := r.lives.Load(); l != nil {
			l.Cover(rt.cfg.AckWait)
		}
		r.solo.Add(rt.group)
	}
}

// commit makes a change. It returns false, and does nothing, when relay drains.
func (r *Relay) commit(p *plot) bool {
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	for _, u := range p.ends {
		u.closing = true
	}
	for name, before := range p.before {
		if rt := p.after[name]; rt != nil {
			rt.former.Store(before)
			rt.follows.Store(time.Now().UnixNano())
		}
	}
	left, list := maps.Clone(p.after), []*route(nil)
	for _, rt := range r.all() {
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
	r.setRoutes(list, end)
	r.book.Accept()
	if p.change.Limits != nil {
		r.setLimits(p.change.Limits)
	}
	return true
}

// run ends what ends and begins what begins.
func (p *plot) run() Changed {
	r := p.relay
	for _, name := range slices.Sorted(maps.Keys(p.lives)) {
		p.lives[name].make()
	}
	for _, rt := range p.after {
		r.enter(rt)
		r.follower.join(rt)
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
				u.main.setup.err = r.openLate(u.work, u.main, setupTimeout)
			}
			u.begin()
			<-u.tried
			for _, rt := range u.main.routes {
				rt.follows.Store(0)
				rt.former.Store(nil)
			}
		})
	}
	work.Wait()
	done := Changed{Removed: p.removed, Waiting: map[string]string{}}
	for _, rt := range p.change.Add {
		done.Added = append(done.Added, rt.Name)
	}
	for _, rt := range p.change.Update {
		done.Updated = append(done.Updated, rt.Name)
	}
	done.Live = slices.Sorted(maps.Keys(p.lives))
	names := p.change.names()
	for _, name := range slices.Sorted(maps.Keys(p.after)) {
		if !slices.Contains(names, name) {
			done.Restarted = append(done.Restarted, name)
		}
		if err := p.after[name].troubles.err(); err != nil {
			done.Waiting[name] = err.Error()
		}
	}
	for _, n := range counts {
		done.Interrupted += n
	}
	for _, name := range p.change.Remove {
		if called := p.before[name].name(); len(r.partsOf(called)) == 0 {
			r.metrics.forget(called)
			r.book.Remove(ownLimit(called))
		}
	}
	r.log.Info("routes changed", "added", done.Added, "updated", done.Updated, "live", done.Live, "restarted", done.Restarted, "removed", p.change.Remove,
		"interrupted", done.Interrupted)
	return done
}

// close ends a unit while others run. It returns how many handlers were interrupted.
func (u *unit) close() int {
	ctx, cancel := context.WithTimeout(u.work, u.relay.drainTime())
	defer cancel()
	u.stopPulling()
	interrupted := u.drain(ctx)
	// Only this route knows the messages that it put aside. Its successor gets them at once, and may put them aside again.
	for _, rt := range u.main.routes {
		rt.group.CallBackAll()
	}
	// Messages whose give-back is not confirmed come again only after AckWait.
	confirm, cancelConfirm := context.WithTimeout(u.work, settleTimeout)
	defer cancelConfirm()
	u.confirm(confirm)
	lastTallies([]*unit{u}, settleTimeout)
	u.end()
	return interrupted
}

// rest is what is left of the route once it has ended.
func (rt *route) rest() Removed {
	left := Removed{Route: rt.cfg.Name, Durable: rt.cfg.Durable, Stream: rt.cfg.Stream, Backlog: rt.backlog()}
	for _, s := range rt.relay.openSources() {
		if s.serves(rt) && !s.due {
			left.Stream = s.stream
		}
	}
	if n, known := rt.relay.retention.dead.stored(rt.name()); known {
		left.DeadLetters = &n
	}
	return left
}
