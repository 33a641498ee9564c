package consumer

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/reload"
	"github.com/relaymq/relay/consumer/internal/source"
)

// commit makes the change. It returns false, and does nothing, when relay drains.
func (p *checkedChange) commit() bool {
	r := p.relay
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
		p.removed = append(p.removed, p.before[name].rest())
	}
	return r.running.Commit(p.ends, func() {
		for name, before := range p.before {
			if rt := p.after[name]; rt != nil {
				rt.standstill.successor.follow(before, time.Now())
			}
		}
		var line []string
		all := maps.Clone(p.after)
		for _, rt := range r.routes.all() {
			if line = append(line, rt.cfg.Name); all[rt.cfg.Name] == nil {
				all[rt.cfg.Name] = rt
			}
		}
		var list []*route
		for _, name := range reload.Line(line, slices.Collect(maps.Keys(p.before)), p.does.Begin) {
			list = append(list, all[name])
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
func (p *checkedChange) make() error {
	if !p.commit() {
		return ErrNotRunning
	}
	p.run()
	return nil
}

// run ends what ends and begins what begins.
func (p *checkedChange) run() Changed {
	r := p.relay
	for _, name := range p.does.InPlace {
		p.lives[name].make()
	}
	for _, rt := range p.after {
		r.enter(rt)
		r.orders.Join(rt.name(), rt.standstill.obey)
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
				if u.named().Awaits(old.named()) {
					<-ended[old]
				}
			}
			for _, rt := range u.routes {
				if old := p.before[rt.cfg.Name]; old != nil && !rt.handsOver() {
					rt.group.Inherit(old.group)
				}
			}
			if u.leased() { // it is opened when this instance has the claim, and what is published from now on is its durable's
				u.main.Setup.Err = u.main.OpenLate(u.work, source.SetupTimeout)
			}
			u.begin()
			<-u.tried
			for _, rt := range u.routes {
				rt.standstill.successor.end()
			}
		})
	}
	work.Wait()
	done := Changed{Added: namesOf(p.change.Add), Updated: namesOf(p.change.Update), Live: p.does.InPlace, Restarted: p.does.Anew, Removed: p.removed, Waiting: map[string]string{}}
	for _, name := range p.does.Begin {
		if err := p.after[name].standstill.troubles.Err(); err != nil {
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

// rest is what is left of the route once it has ended.
func (rt *route) rest() Removed {
	left := Removed{Route: rt.cfg.Name, Durable: rt.cfg.Durable, Stream: rt.cfg.Stream, Backlog: rt.backlog()}
	if u := rt.unit.Load(); u != nil { // also when the durable could not be opened yet
		left.Stream = u.main.Stream
	}
	if n, known := rt.relay.upkeep.Dead(rt.name()); known {
		left.DeadLetters = &n
	}
	return left
}
