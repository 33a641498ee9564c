package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/reload"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
)

// commit makes the change. It returns false, and does nothing, when relay drains.
func (p *checkedChange) commit() bool {
	r := p.engine
	for _, u := range p.begins {
		u.prepare()
		for _, s := range u.sources() {
			for _, old := range sourcesOf(p.ends) {
				if s.String() == old.String() {
					s.Count = old.Count
				}
			}
		}
	}
	for _, name := range p.change.Remove {
		p.removed = append(p.removed, restOf(p.before[name]))
	}
	return r.Running.Commit(p.ends, func() {
		for name, before := range p.before {
			if rt := p.after[name]; rt != nil {
				rt.Standstill.Successor.Follow(before, time.Now())
			}
		}
		var line []string
		all := maps.Clone(p.after)
		for _, rt := range r.Routes.All() {
			if line = append(line, rt.Spec.Name); all[rt.Spec.Name] == nil {
				all[rt.Spec.Name] = rt
			}
		}
		var list []*route.Route
		for _, name := range reload.Line(line, slices.Collect(maps.Keys(p.before)), p.does.Begin) {
			list = append(list, all[name])
		}
		var end []*route.Route
		for _, name := range p.change.Remove {
			end = append(end, p.before[name])
		}
		r.Routes.replace(list, end)
		r.Bounds.Book().Accept()
		if p.change.Limits != nil {
			r.Bounds.Replace(p.change.Limits)
		}
	})
}

// make commits the change and runs it.
func (p *checkedChange) make() error {
	if !p.commit() {
		return roster.ErrNotRunning
	}
	p.run()
	return nil
}

// run ends what ends and begins what begins.
func (p *checkedChange) run() Changed {
	r := p.engine
	for _, name := range p.does.InPlace {
		p.lives[name].Commit()
	}
	for _, rt := range p.after {
		r.enter(rt)
		r.orders.Join(rt.Name(), rt.Standstill.Obey)
	}
	counts := make([]int, len(p.ends))
	ended := make(map[*Unit]chan struct{})
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
				if u.named().Awaits(old.named()) {
					<-ended[old]
				}
			}
			for _, rt := range u.routes {
				if old := p.before[rt.Spec.Name]; old != nil && !rt.HandsOver() {
					rt.Group.Inherit(old.Group)
				}
			}
			if u.leased() { // it is opened when this instance has the claim, and what is published from now on is its durable's
				u.Main.Setup.Err = u.Main.OpenLate(u.work, source.SetupTimeout)
			}
			u.begin()
			<-u.tried
			for _, rt := range u.routes {
				rt.Standstill.Successor.End()
			}
		})
	}
	work.Wait()
	done := Changed{Added: namesOf(p.change.Add), Updated: namesOf(p.change.Update), Live: p.does.InPlace, Restarted: p.does.Anew, Removed: p.removed, Waiting: map[string]string{}}
	for _, name := range p.does.Begin {
		if err := p.after[name].Standstill.Troubles.Err(); err != nil {
			done.Waiting[name] = err.Error()
		}
	}
	for _, n := range counts {
		done.Interrupted += n
	}
	for _, name := range p.change.Remove {
		if called := p.before[name].Name(); len(r.Routes.called(called)) == 0 {
			r.Routes.metrics.Forget(called)
			r.Bounds.RemoveOwn(called)
		}
	}
	r.Log.Info("routes changed", "added", done.Added, "updated", done.Updated, "live", done.Live, "restarted", done.Restarted, "removed", p.change.Remove,
		"interrupted", done.Interrupted)
	return done
}

// restOf is what is left of the route once it has ended.
func restOf(rt *route.Route) Removed {
	left := Removed{Route: rt.Spec.Name, Durable: rt.Spec.Durable, Stream: rt.Spec.Stream, Backlog: rt.Backlog()}
	if u := unitOf(rt); u != nil { // also when the durable could not be opened yet
		left.Stream = u.Main.Stream
	}
	if n, known := rt.Home.Upkeep.Dead(rt.Name()); known {
		left.DeadLetters = &n
	}
	return left
}

// liveChanges are routes of a change that may change in place, by name.
func (c Change) liveChanges(routes []*route.Route, cfgs map[string]route.Spec) map[string]*route.LiveChange {
	list := make(map[string]*route.LiveChange)
	if c.anew {
		return list
	}
	for _, rt := range routes {
		for _, u := range c.Update {
			if cfg := cfgs[u.Name]; u.Name == rt.Spec.Name && rt.ChangesLive(cfg) {
				list[u.Name] = &route.LiveChange{Route: rt, Spec: cfg}
			}
		}
	}
	return list
}

// prepareAll prepares what changes in place, side by side with what it is to replace. With an error nothing of it is left.
func (p *checkedChange) prepareAll(ctx context.Context) error {
	var faults []error
	for _, b := range p.lives {
		if err := b.Prepare(ctx); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		p.undo(ctx)
	}
	return errors.Join(faults...)
}

// undo ends what a change has made that is not to be.
func (p *checkedChange) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	for _, b := range p.lives {
		b.Undo(ctx)
	}
	p.discard()
}
