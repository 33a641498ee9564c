package consumer

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

// equip makes what handles messages with that configuration, in the outer middleware of the Relay. Of the equipment that was, with the configuration
// before, it takes what stays as it is; nil: there was none.
func equip(cfg Route, outer []Middleware, before Route, was *equipment) *equipment {
	e := new(equipment)
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
		e.own = &part{handler: cfg.wrap(work, outer), shared: life, ownBytes: cfg.OwnBytes}
	}
	if e.batch != nil && was != nil && e.batch != was.batch {
		e.former = was // batches of it may hang
	}
	switch f := cfg.Fallback; {
	case f == nil:
	case was != nil && usercode.Same(before.Fallback.Handler, f.Handler) && before.Fallback.Timeout == f.Timeout && len(before.Use)+len(cfg.Use) == 0:
		e.fallback = was.fallback
	case was != nil && usercode.Same(before.Fallback.Handler, f.Handler):
		e.fallback = cfg.fallbackPart(outer, was.fallback.shared)
	default:
		e.fallback = cfg.fallbackPart(outer, cfg.fallbackLife)
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
