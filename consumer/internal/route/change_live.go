package route

import (
	"context"
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

// ChangesLive tells whether the route can be changed to that in place.
func (rt *Route) ChangesLive(cfg Spec) bool {
	was := *rt.Now()
	switch {
	case rt.IsUnplaced(), cfg.Leased() != was.Leased():
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
	r.Retry, r.Supervisor, r.Stash = Retry{}, supervisor.Config{}, supervise.Room{}
	r.Life, r.FallbackLife = nil, nil
	r.Batch, r.Fallback, r.Code = nil, nil, Code{}
	return r
}

// LiveChange is a change of a route in place.
type LiveChange struct {
	Route *Route
	Spec  Spec
	was   *equipment
	to    *equipment
}

// Prepare makes what the route is to have, and starts it. Nothing has changed then.
func (b *LiveChange) Prepare(ctx context.Context) error {
	b.was = b.Route.settings.equipment.Load()
	b.to = equip(b.Spec, *b.Route.Now(), b.was)
	if err := b.to.start(ctx, b.was, b.Spec); err != nil {
		return &SetupError{b.Spec.Name, fmt.Errorf("handler: %w", err)}
	}
	return nil
}

// Undo stops what Prepare started.
func (b *LiveChange) Undo(ctx context.Context) {
	if b.to != nil {
		b.to.endUnless(ctx, b.Route, b.was)
	}
}

// Commit makes the change.
func (b *LiveChange) Commit() {
	rt, r := b.Route, b.Route.Home
	rt.settings.changing.Lock()
	defer rt.settings.changing.Unlock()
	if rt.settings.over {
		b.Undo(r.Phases.Work)
		return
	}
	before := *rt.Now()
	rev := supervise.Revision{Options: rt.options(b.Spec, b.to)}
	own, fallback := make(chan struct{}), make(chan struct{})
	if b.to.own != b.was.own || b.Spec.Code.New != nil {
		rev.Ended = func() { close(own) }
	} else {
		close(own)
	}
	if b.to.fallback != b.was.fallback {
		rev.FallbackEnded = func() { close(fallback) }
	} else {
		close(fallback)
	}
	rt.settings.cfg.Store(&b.Spec)
	rt.Memory.SetMost(b.Spec.mostHeld(rev.Options))
	b.to.forget()
	rt.settings.equipment.Store(b.to)
	if before.Rate != b.Spec.Rate || before.Burst != b.Spec.Burst {
		b.Spec.EnterLimits(r.Bounds)
	}
	interrupt := rt.Group.Change(rev)
	rt.settings.formers.Go(func() {
		patience := time.NewTimer(r.Phases.DrainTime())
		defer patience.Stop()
		for _, ended := range []chan struct{}{own, fallback} {
			select {
			case <-ended:
			case <-patience.C:
				if n := interrupt(); n > 0 {
					rt.Log.Warn("handlers that started before the change did not end within the drain, and were interrupted", "handlers", n)
				}
				<-ended // a moment later, or when the route ends
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Phases.Ends), r.Phases.DrainTime())
		defer cancel()
		b.was.endUnless(ctx, rt, b.to)
	})
}
