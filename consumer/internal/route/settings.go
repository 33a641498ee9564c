package route

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/usercode"
)

// settings are those of a route that may change in place.
type settings struct {
	cfg       atomic.Pointer[Spec]
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

// Now is the configuration of the route as it was changed last. It is not written to.
func (rt *Route) Now() *Spec { return rt.settings.cfg.Load() }

// equipment is what has the attempts of a route.
type equipment struct {
	own      *part      // nil: each key has its own handler
	batches  func() int // how many batches of it were given up and have not returned; nil: one message at a time
	fallback *part      // nil: there is none
	former   *equipment
}

// equip makes what handles messages with that configuration. Of the equipment that was, with the configuration
// before, it takes what stays as it is; nil: there was none.
func equip(cfg Spec, before Spec, was *equipment) *equipment {
	e := new(equipment)
	switch h := cfg.Code.Shared; {
	case h == nil:
	case was != nil && sameWork(before, cfg):
		e.own, e.batches = was.own, was.batches
	default:
		life := cfg.Life
		if cfg.Part == nil {
			life = usercode.NewLife(h)
		}
		if was != nil && usercode.Same(before.Code.Shared, h) {
			life = was.own.shared
		}
		e.own = &part{shared: life, ownBytes: cfg.Code.OwnBytes}
		e.own.call, e.batches = cfg.Code.Wrap(h)
	}
	if e.batches != nil && was != nil && e.own != was.own {
		e.former = was // batches of it may hang
	}
	switch f := cfg.Fallback; {
	case f == nil:
	case was != nil && usercode.Same(before.Fallback.Code.Shared, f.Code.Shared) && before.Fallback.Timeout == f.Timeout && !before.Code.Middleware && !cfg.Code.Middleware:
		e.fallback = was.fallback
	case was != nil && usercode.Same(before.Fallback.Code.Shared, f.Code.Shared):
		e.fallback = cfg.fallbackPart(was.fallback.shared)
	default:
		e.fallback = cfg.fallbackPart(cfg.FallbackLife)
	}
	return e
}

// hung is how many batches were given up and have not returned.
func (e *equipment) hung() (n int) {
	for ; e != nil; e = e.former {
		if e.batches != nil {
			n += e.batches()
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
func sameWork(a, b Spec) bool {
	return usercode.Same(a.Code.Shared, b.Code.Shared) && !a.Code.Middleware && !b.Code.Middleware && a.Code.OwnBytes == b.Code.OwnBytes &&
		(a.Batch == nil && b.Batch == nil || a.Batch != nil && b.Batch != nil && *a.Batch == *b.Batch && a.Concurrency == b.Concurrency)
}

// start starts those handlers that were not there before.
func (e *equipment) start(ctx context.Context, was *equipment, cfg Spec) error {
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
func (e *equipment) end(ctx context.Context, rt *Route) { e.endUnless(ctx, rt, new(equipment)) }

// endUnless stops the handlers that next has not.
func (e *equipment) endUnless(ctx context.Context, rt *Route, next *equipment) {
	if e.own != nil && (next.own == nil || next.own.shared != e.own.shared) {
		if err := e.own.shared.End(ctx, rt.Now().Timeout); err != nil {
			rt.Log.Warn("the handler did not stop cleanly", "error", err)
		}
	}
	if f := e.fallback; f != nil && (next.fallback == nil || next.fallback.shared != f.shared) {
		if err := f.shared.End(ctx, f.timeout); err != nil {
			rt.Log.Warn("the fallback did not stop cleanly", "error", err)
		}
	}
}
