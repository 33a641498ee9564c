package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/placing"
)

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
	defer context.AfterFunc(r.phases.ends, cancel)()
	r.listings.Forget()
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
			stream, err = r.placing.StreamOf(ctx, cfg.placed())
			return err
		})
		if err != nil {
			return nil, setupError(name, err)
		}
		places[name] = stream + "/" + cfg.Durable
	}
	names := slices.DeleteFunc(c.names(), func(name string) bool { return p.lives[name] != nil })
	for _, u := range r.running.Units() {
		shares := slices.ContainsFunc(u.main.routes, func(rt *route) bool { return slices.Contains(names, rt.cfg.Name) })
		for _, place := range places {
			shares = shares || place == u.main.String()
		}
		if shares {
			p.ends = append(p.ends, u)
		}
	}
	for _, rt := range r.routes.all() {
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
	units, without, faults := r.plan(ctx, list, placing.Once)
	faults = append(faults, faultsOf(without)...)
	for _, rt := range list {
		if slices.Contains(names, rt.cfg.Name) && !rt.cfg.isCopy() {
			if err := checkHandler(ctx, *rt.now()); err != nil {
				faults = append(faults, &SetupError{rt.cfg.Name, err})
			}
		}
		for _, u := range r.running.Units() {
			if slices.Contains(p.ends, u) {
				continue
			}
			for _, n := range units {
				if n.main.serves(rt) && n.main.stream == u.main.stream {
					faults = append(faults, setupErrors(placing.Overlaps(allPlaced(u.main.routes), rt.cfg.placed(), false))...)
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
func (r *Relay) together(c Change, all map[string]Limit) (map[string]Route, error) {
	there := make(map[string]bool)
	for _, rt := range r.routes.all() {
		there[rt.cfg.Name] = true
	}
	cfgs, seen := make(map[string]Route), make(map[string]bool)
	faults := limits.Check(all)
	fault := func(name, format string, args ...any) { //nolint:unparam // as fault is everywhere
		faults = append(faults, &SetupError{name, fmt.Errorf(format, args...)})
	}
	for i, cfg := range slices.Concat(c.Add, c.Update) {
		cfg, err := checked(cfg)
		if err != nil {
			faults = append(faults, err)
		}
		if err := cfg.CheckLimits(all); err != nil {
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
	for _, rt := range r.routes.all() {
		if slices.Contains(c.names(), rt.cfg.Name) {
			continue
		}
		if err := rt.cfg.CheckLimits(all); err != nil {
			faults = append(faults, &SetupError{rt.cfg.Name, err})
		}
	}
	return cfgs, errors.Join(faults...)
}

// preflight looks at what is on the server.
func (p *plot) preflight(ctx context.Context, list []*route) error {
	r := p.relay
	sources := sourcesOf(p.begins)
	sideBySide(ctx, r.nc, sources, lookAt)
	lookTwice(ctx, r.nc, sources)
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
	if err := r.checkPermissions(ctx, sources); err != nil {
		return setupError("", err)
	}
	return setupError("", r.stores.Widen(ctx, deadPrefixes(r.routes.all()), deadPrefixes(list)))
}
