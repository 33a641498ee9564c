package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/supervisor"
)

// A route that changes in nothing but how its messages are handled becomes what it is to be in place: the same group, the same durable,
// which is not opened anew. What runs goes on as it began, with its handler and its timeout, and holds its slot and the order of its
// key; all else counts from the next start on. A handler that is replaced is stopped when its last run has ended; after the drain time
// its runs are interrupted, which spends no attempt.

// changesLive tells whether the route can be changed to that in place.
func (rt *Route) changesLive(cfg Spec) bool {
	was := *rt.Now()
	switch {
	case rt.isUnplaced(), cfg.Leased() != was.Leased():
		return false
	case reflect.TypeOf(was.Code.Shared) != reflect.TypeOf(cfg.Code.Shared), (was.Code.New == nil) != (cfg.Code.New == nil), (was.Batch == nil) != (cfg.Batch == nil):
		return false
	case (was.Fallback == nil) != (cfg.Fallback == nil):
		return false
	case was.Fallback != nil && reflect.TypeOf(was.Fallback.Code.Shared) != reflect.TypeOf(cfg.Fallback.Code.Shared):
		return false
	case was.guarded() != cfg.guarded(), (was.Rate.Count == 0) != (cfg.Rate.Count == 0):
		return false
	}
	return reflect.DeepEqual(was.lasting(), cfg.lasting())
}

// lasting is what of a route does not change in place.
func (r Spec) lasting() Spec {
	r.Concurrency, r.Rate, r.Burst, r.Timeout = 0, limits.Rate{}, 0, 0
	r.Retry, r.Supervisor, r.Stash = Retrying{}, supervisor.Config{}, supervise.Room{}
	r.life, r.fallbackLife = nil, nil
	r.Batch, r.Fallback, r.Code = nil, nil, Code{}
	return r
}

// liveChange is a change of a route in place.
type liveChange struct {
	rt  *Route
	cfg Spec
	was *equipment
	to  *equipment
}

// prepare makes what the route is to have, and starts it. Nothing has changed then.
func (b *liveChange) prepare(ctx context.Context) error {
	b.was = b.rt.settings.equipment.Load()
	b.to = equip(b.cfg, *b.rt.Now(), b.was)
	if err := b.to.start(ctx, b.was, b.cfg); err != nil {
		return &SetupError{b.cfg.Name, fmt.Errorf("handler: %w", err)}
	}
	return nil
}

// undo stops what prepare started.
func (b *liveChange) undo(ctx context.Context) {
	if b.to != nil {
		b.to.endUnless(ctx, b.rt, b.was)
	}
}

// make makes the change.
func (b *liveChange) make() {
	rt, r := b.rt, b.rt.Engine
	rt.settings.changing.Lock()
	defer rt.settings.changing.Unlock()
	if rt.settings.over {
		b.undo(r.Phases.work)
		return
	}
	before := *rt.Now()
	rev := supervise.Revision{Options: rt.options(b.cfg, b.to)}
	own, fallback := make(chan struct{}), make(chan struct{})
	if b.to.own != b.was.own || b.cfg.Code.New != nil {
		rev.Ended = func() { close(own) }
	} else {
		close(own)
	}
	if b.to.fallback != b.was.fallback {
		rev.FallbackEnded = func() { close(fallback) }
	} else {
		close(fallback)
	}
	rt.settings.cfg.Store(&b.cfg)
	rt.Memory.SetMost(b.cfg.mostHeld(rev.Options))
	b.to.forget()
	rt.settings.equipment.Store(b.to)
	if before.Rate != b.cfg.Rate || before.Burst != b.cfg.Burst {
		b.cfg.enterLimits(r.limits)
	}
	interrupt := rt.Group.Change(rev)
	rt.settings.formers.Go(func() {
		patience := time.NewTimer(r.Phases.drainTime())
		defer patience.Stop()
		for _, ended := range []chan struct{}{own, fallback} {
			select {
			case <-ended:
			case <-patience.C:
				if n := interrupt(); n > 0 {
					rt.log.Warn("handlers that started before the change did not end within the drain, and were interrupted", "handlers", n)
				}
				<-ended // a moment later, or when the route ends
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Phases.ends), r.Phases.drainTime())
		defer cancel()
		b.was.endUnless(ctx, rt, b.to)
	})
}

// liveChanges are routes of a change that may change in place, by name.
func (c Change) liveChanges(routes []*Route, cfgs map[string]Spec) map[string]*liveChange {
	list := make(map[string]*liveChange)
	if c.anew {
		return list
	}
	for _, rt := range routes {
		for _, u := range c.Update {
			if cfg := cfgs[u.Name]; u.Name == rt.Spec.Name && rt.changesLive(cfg) {
				list[u.Name] = &liveChange{rt: rt, cfg: cfg}
			}
		}
	}
	return list
}

// prepareAll prepares what changes in place, side by side with what it is to replace. With an error nothing of it is left.
func (p *checkedChange) prepareAll(ctx context.Context) error {
	var faults []error
	for _, b := range p.lives {
		if err := b.prepare(ctx); err != nil {
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
		b.undo(ctx)
	}
	p.discard()
}
