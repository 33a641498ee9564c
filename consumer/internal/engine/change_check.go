package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/reload"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
)

// checkedChange is a change in which nothing is wrong, and which may be made.
type checkedChange struct {
	engine  *Engine
	change  Change
	does    reload.Decision
	ends    []*Unit
	begins  []*Unit
	before  map[string]*route.Route // those that end
	after   map[string]*route.Route // those that begin
	removed []Removed
	lives   map[string]*route.LiveChange // what changes in place
}

// check checks a change. What it makes on the server is of no effect by itself: a subject more of the dead letters, and the entry of
// this process among those that run Go handlers.
func (c Change) check(ctx context.Context, r *Engine) (*checkedChange, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.Phases.Ends, cancel)()
	r.Listings.Forget()
	all := c.Limits
	if all == nil {
		all = r.Limits()
	}
	cfgs, err := c.together(r.Routes.All(), all)
	if err != nil {
		return nil, err
	}
	running := r.Running.Units()
	p := &checkedChange{engine: r, change: c, before: map[string]*route.Route{}, after: map[string]*route.Route{}, lives: c.liveChanges(r.Routes.All(), cfgs)}
	if err := p.decide(ctx, cfgs, running); err != nil {
		return nil, err
	}
	list := p.newRoutes(cfgs, all)
	units, without, faults := unitsOf(ctx, r, list, placing.Once)
	p.begins = units
	faults = slices.Concat(faults, faultsOf(without), p.checkHandlers(ctx), p.clashes(running))
	if err = errors.Join(faults...); err == nil && len(list) > 0 {
		err = p.preflight(ctx, list)
	}
	if err != nil {
		p.discard()
		return nil, err
	}
	return p, nil
}

// decide finds out what ends, what begins and what changes in place.
func (p *checkedChange) decide(ctx context.Context, cfgs map[string]route.Spec, running []*Unit) error {
	r := p.engine
	meets := reload.Running{InPlace: slices.Collect(maps.Keys(p.lives)), Places: make(map[string]string)}
	for name, cfg := range cfgs {
		if p.lives[name] != nil {
			continue
		}
		// The durable that the route is to read may be that of others.
		var stream string
		err := r.attempt(ctx, func(ctx context.Context) (err error) {
			stream, err = r.placing.StreamOf(ctx, cfg.Placed())
			return err
		})
		if err != nil {
			return setupError(name, err)
		}
		meets.Places[name] = stream + "/" + cfg.Durable
	}
	for _, u := range running {
		meets.Units = append(meets.Units, u.named())
	}
	p.does = p.change.byName().Decide(meets)
	for _, i := range p.does.Ends {
		p.ends = append(p.ends, running[i])
		for _, rt := range running[i].routes {
			p.before[rt.Spec.Name] = rt
		}
	}
	for _, rt := range r.Routes.All() {
		if rt.IsUnplaced() && slices.Contains(p.change.names(), rt.Spec.Name) {
			p.before[rt.Spec.Name] = rt
		}
	}
	maps.DeleteFunc(p.lives, func(name string, _ *route.LiveChange) bool { return !slices.Contains(p.does.InPlace, name) })
	return nil
}

// newRoutes makes the routes that begin. Those that begin anew are as they were changed last.
func (p *checkedChange) newRoutes(cfgs map[string]route.Spec, all map[string]limits.Limit) (list []*route.Route) {
	for _, name := range p.does.Begin {
		old := p.before[name]
		cfg, given := cfgs[name]
		if !given {
			cfg = *old.Now()
		}
		rt := route.New(p.engine.Home, cfg, all, old)
		p.after[name] = rt
		list = append(list, rt)
	}
	return list
}

// checkHandlers asks the handlers of the routes that the change names whether they can work.
func (p *checkedChange) checkHandlers(ctx context.Context) (faults []error) {
	ask := func(cfg route.Spec) {
		if err := route.CheckHandler(ctx, cfg); err != nil {
			faults = append(faults, &route.SetupError{Route: cfg.Name, Err: err})
		}
	}
	for _, name := range p.does.Begin {
		if rt := p.after[name]; !slices.Contains(p.does.Anew, name) && !rt.Spec.IsCopy() {
			ask(*rt.Now())
		}
	}
	for _, name := range p.does.InPlace {
		ask(p.lives[name].Spec)
	}
	return faults
}

// clashes are subjects that a route wants which begins, and one that goes on.
func (p *checkedChange) clashes(running []*Unit) (faults []error) {
	for i, goesOn := range running {
		if slices.Contains(p.does.Ends, i) {
			continue
		}
		for _, begins := range p.begins {
			if begins.Main.Stream != goesOn.Main.Stream {
				continue
			}
			for _, rt := range begins.routes {
				faults = append(faults, setupErrors(placing.Overlaps(allPlaced(goesOn.routes), rt.Spec.Placed()))...)
			}
		}
	}
	return faults
}

// together checks the routes of a change by themselves and returns those that are given, by name.
func (c Change) together(routes []*route.Route, all map[string]limits.Limit) (map[string]route.Spec, error) {
	var there []string
	for _, rt := range routes {
		there = append(there, rt.Spec.Name)
	}
	cfgs := make(map[string]route.Spec)
	faults := limits.Check(all)
	for _, cfg := range slices.Concat(c.Add, c.Update) {
		if cfg.Fault != nil {
			faults = append(faults, cfg.Fault)
		}
		if err := cfg.CheckLimits(all); err != nil {
			faults = append(faults, &route.SetupError{Route: cfg.Name, Err: err})
		}
		cfgs[cfg.Name] = cfg
	}
	c.byName().Faults(there, func(name, text string) {
		faults = append(faults, &route.SetupError{Route: name, Err: errors.New(text)})
	})
	for _, rt := range routes {
		if slices.Contains(c.names(), rt.Spec.Name) {
			continue
		}
		if err := rt.Spec.CheckLimits(all); err != nil {
			faults = append(faults, &route.SetupError{Route: rt.Spec.Name, Err: err})
		}
	}
	return cfgs, errors.Join(faults...)
}

// preflight looks at what is on the server.
func (p *checkedChange) preflight(ctx context.Context, list []*route.Route) error {
	r := p.engine
	sources := sourcesOf(p.begins)
	sideBySide(ctx, r.Conn, sources, lookAt)
	lookTwice(ctx, r.Conn, sources)
	var faults []error
	for _, s := range sources {
		if s.Setup.Err != nil {
			faults = append(faults, setupError(s.Routes()[0].Name, s.Setup.Err))
		} else if !p.change.DeliverAgain {
			faults = append(faults, repeats(s)...)
		}
	}
	if err := setupError("", faults...); err != nil || ctx.Err() != nil {
		return cmp.Or(err, context.Cause(ctx))
	}
	if err := checkPermissions(ctx, r.prober, sources); err != nil {
		return setupError("", err)
	}
	return setupError("", r.Stores.Widen(ctx, deadPrefixes(r.Routes.All()), deadPrefixes(list)))
}

// discard has routes that will not begin leave the lines of their limits, and limits that were only theirs be forgotten.
func (p *checkedChange) discard() {
	for _, rt := range p.after {
		rt.Group.Drain()
	}
	p.engine.Bounds.Book().Discard()
}

// repeats are the errors of a durable that would bring again what was handled, where the configuration does not say that this is meant: start: all
// may be a habit, and a sequence or a time is not.
func repeats(s *source.Source) (faults []error) {
	does := "does not exist yet, and with start: all it delivers again"
	if s.Setup.Have != nil {
		does = "has passed messages on subjects that the route adds, and with start: all it hands over"
	}
	for _, a := range s.Setup.Again {
		if a.All {
			faults = append(faults, &route.SetupError{Route: s.Routes()[0].Name, Err: fmt.Errorf(
				"durable %s %s messages that were handled before: %v. To allow this: relay reload --deliver-again, or start: {seq: 1}", s.Name, does, a)})
		}
	}
	return faults
}
