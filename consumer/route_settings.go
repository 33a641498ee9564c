package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/supervisor"
)

// A route that changes in nothing but how its messages are handled becomes what it is to be in place: the same group, the same durable,
// which is not opened anew. What runs goes on as it began, with its handler and its timeout, and holds its slot and the order of its
// key; all else counts from the next start on. A handler that is replaced is stopped when its last run has ended; after the drain time
// its runs are interrupted, which spends no attempt.

// settings are those of a route that may change in place.
type settings struct {
	cfg       atomic.Pointer[Route]
	equipment atomic.Pointer[equipment]
	formers   sync.WaitGroup // handlers that were changed and have not ended
	changing  sync.Mutex
	over      bool // the route ends, and does not change any more; guarded by changing
}

// end says that they do not change any more.
func (s *settings) end() {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.over = true
}

// now is the configuration of the route as it was changed last. It is not written to.
func (rt *route) now() *Route { return rt.settings.cfg.Load() }

// equipment is what has the attempts of a route.
type equipment struct {
	own      *part    // nil: each key has its own handler
	batch    *batcher // nil: one message at a time
	fallback *part    // nil: there is none
	former   *equipment
}

// equip makes what handles messages with that configuration. Of the equipment that was, it takes what stays as it is.
func (rt *route) equip(cfg Route, was *equipment) *equipment {
	e := new(equipment)
	var before Route
	if was != nil {
		before = *rt.now()
	}
	switch h := cfg.Handler; {
	case h == nil:
	case was != nil && sameWork(before, cfg):
		e.own, e.batch = was.own, was.batch
	default:
		life := cfg.life
		if cfg.part == nil {
			life = usercode.NewLife(h)
		}
		if was != nil && usercode.Same(before.Handler, h) {
			life = was.own.shared
		}
		work := h
		if bh, ok := h.(BatchHandler); ok && cfg.Batch != nil {
			e.batch = newBatcher(bh, *cfg.Batch, cfg.Concurrency)
			work = e.batch
		}
		e.own = &part{handler: rt.wrap(work, cfg.Use), shared: life, ownBytes: cfg.OwnBytes}
	}
	if e.batch != nil && was != nil && e.batch != was.batch {
		e.former = was // batches of it may hang
	}
	switch f := cfg.Fallback; {
	case f == nil:
	case was != nil && usercode.Same(before.Fallback.Handler, f.Handler) && before.Fallback.Timeout == f.Timeout && len(before.Use)+len(cfg.Use) == 0:
		e.fallback = was.fallback
	case was != nil && usercode.Same(before.Fallback.Handler, f.Handler):
		e.fallback = rt.fallbackPart(cfg, was.fallback.shared)
	default:
		e.fallback = rt.fallbackPart(cfg, cfg.fallbackLife)
	}
	return e
}

// hung is how many batches were given up and have not returned.
func (e *equipment) hung() (n int) {
	for ; e != nil; e = e.former {
		if e.batch != nil {
			n += e.batch.Hung()
		}
	}
	return n
}

// forget drops former batchers of which nothing hangs.
func (e *equipment) forget() {
	for e.former != nil && e.former.hung() == 0 {
		e.former = nil
	}
}

// sameWork tells whether the handler of the route has the same around it.
func sameWork(a, b Route) bool {
	return usercode.Same(a.Handler, b.Handler) && len(a.Use)+len(b.Use) == 0 && a.OwnBytes == b.OwnBytes &&
		(a.Batch == nil && b.Batch == nil || a.Batch != nil && b.Batch != nil && *a.Batch == *b.Batch && a.Concurrency == b.Concurrency)
}

// start starts those handlers that were not there before.
func (e *equipment) start(ctx context.Context, was *equipment, cfg Route) error {
	begin := func(p, before *part, timeout time.Duration) error {
		if p == nil || before != nil && p.shared == before.shared {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return p.shared.Begin(ctx)
	}
	if err := begin(e.own, was.own, cfg.Timeout); err != nil {
		return err
	}
	if e.fallback == nil {
		return nil
	}
	if err := begin(e.fallback, was.fallback, e.fallback.timeout); err != nil {
		return fmt.Errorf("fallback: %w", err)
	}
	return nil
}

// end stops the handlers.
func (e *equipment) end(ctx context.Context, rt *route) { e.endUnless(ctx, rt, new(equipment)) }

// endUnless stops the handlers that next has not.
func (e *equipment) endUnless(ctx context.Context, rt *route, next *equipment) {
	if e.own != nil && (next.own == nil || next.own.shared != e.own.shared) {
		if err := e.own.shared.End(ctx, rt.now().Timeout); err != nil {
			rt.log.Warn("the handler did not stop cleanly", "error", err)
		}
	}
	if f := e.fallback; f != nil && (next.fallback == nil || next.fallback.shared != f.shared) {
		if err := f.shared.End(ctx, f.timeout); err != nil {
			rt.log.Warn("the fallback did not stop cleanly", "error", err)
		}
	}
}

// mayBecome tells whether the route can be changed to that in place.
func (rt *route) mayBecome(cfg Route) bool {
	was := *rt.now()
	switch {
	case rt.isUnplaced(), cfg.Leased() != was.Leased():
		return false
	case reflect.TypeOf(was.Handler) != reflect.TypeOf(cfg.Handler), (was.Factory == nil) != (cfg.Factory == nil), (was.Batch == nil) != (cfg.Batch == nil):
		return false
	case (was.Fallback == nil) != (cfg.Fallback == nil):
		return false
	case was.Fallback != nil && reflect.TypeOf(was.Fallback.Handler) != reflect.TypeOf(cfg.Fallback.Handler):
		return false
	case was.guarded() != cfg.guarded(), (was.Rate.Count == 0) != (cfg.Rate.Count == 0):
		return false
	}
	return reflect.DeepEqual(was.lasting(), cfg.lasting())
}

// lasting is what of a route does not change in place.
func (r Route) lasting() Route {
	r.Concurrency, r.Rate, r.Burst, r.Timeout = 0, Rate{}, 0, 0
	r.Retry, r.Supervisor, r.Stash = Retry{}, supervisor.Config{}, Stash{}
	r.life, r.fallbackLife = nil, nil
	r.Batch, r.Fallback, r.Handler, r.Factory, r.Use, r.OwnBytes, r.Check, r.Outside = nil, nil, nil, nil, nil, false, nil, false
	return r
}

// becoming is a change of a route in place.
type becoming struct {
	rt  *route
	cfg Route
	was *equipment
	to  *equipment
}

// prepare makes what the route is to have, and starts it. Nothing has changed then.
func (b *becoming) prepare(ctx context.Context) error {
	b.cfg = b.rt.relay.ownBytes(b.cfg)
	b.was = b.rt.settings.equipment.Load()
	b.to = b.rt.equip(b.cfg, b.was)
	if err := b.to.start(ctx, b.was, b.cfg); err != nil {
		return &SetupError{b.cfg.Name, fmt.Errorf("handler: %w", err)}
	}
	return nil
}

// undo stops what prepare started.
func (b *becoming) undo(ctx context.Context) {
	if b.to != nil {
		b.to.endUnless(ctx, b.rt, b.was)
	}
}

// make makes the change.
func (b *becoming) make() {
	rt, r := b.rt, b.rt.relay
	rt.settings.changing.Lock()
	defer rt.settings.changing.Unlock()
	if rt.settings.over {
		b.undo(r.phases.work)
		return
	}
	before := *rt.now()
	rev := supervisor.Revision{Options: rt.options(b.cfg, b.to)}
	own, fallback := make(chan struct{}), make(chan struct{})
	if b.to.own != b.was.own || b.cfg.Factory != nil {
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
	rt.memory.SetMost(mostHeld(rev.Options, b.cfg.asks()))
	b.to.forget()
	rt.settings.equipment.Store(b.to)
	if before.Rate != b.cfg.Rate || before.Burst != b.cfg.Burst {
		r.enterLimits(b.cfg)
	}
	interrupt := rt.group.Change(rev)
	rt.settings.formers.Go(func() {
		patience := time.NewTimer(r.phases.drainTime())
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.phases.ends), r.phases.drainTime())
		defer cancel()
		b.was.endUnless(ctx, rt, b.to)
	})
}

// becomings are routes of a change that may change in place, by name.
func (r *Relay) becomings(c Change, cfgs map[string]Route) map[string]*becoming {
	list := make(map[string]*becoming)
	if c.anew {
		return list
	}
	for _, rt := range r.routes.all() {
		for _, u := range c.Update {
			if cfg := cfgs[u.Name]; u.Name == rt.cfg.Name && rt.mayBecome(cfg) {
				list[u.Name] = &becoming{rt: rt, cfg: cfg}
			}
		}
	}
	return list
}

// prepareAll prepares what changes in place, side by side with what it is to replace. With an error nothing of it is left.
func (p *plot) prepareAll(ctx context.Context) error {
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
func (p *plot) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	for _, b := range p.lives {
		b.undo(ctx)
	}
	p.discard()
}

// discard has routes that will not begin leave the lines of their limits, and limits that were only theirs be forgotten.
func (p *plot) discard() {
	for _, rt := range p.after {
		rt.group.Drain()
	}
	p.relay.limits.Book().Discard()
}
