package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/transient"
)

// How relay starts. What is merely away, as a server, a leader or a quorum may be, never ends a start: it is named, and tried
// again. A fault that only people can mend ends it at once, before anything was made for the routes.
//
//  1. What the routes share is made, for as long as it takes: relay's own streams and buckets, the orders of operators.
//  2. The stream of each route is found: by then the JetStream API answers, and if it does not again, it is waited for.
//  3. All durables are looked at, side by side, and what may be done to them. Whatever cannot work is found here.
//  4. Those that are missing are made, and all are opened. A start that fails here removes those that it made.
//
// A route whose stream or durable is away in step 3 or 4 is set up later, by itself (Source.Await), while the others run; and so is
// one whose durable has other settings, when somebody has changed them, and one without a stream
// (unplaced.go), when somebody has made it.

// atOnce bounds how many durables are set up side by side.
const atOnce = 16

// startup is the start of a relay.
type startup struct {
	*Engine
	units   []*Unit
	without []unplaced // routes that have no stream
}

// start makes or finds everything that the routes need, until ctx is done.
func (l *startup) start(ctx context.Context) error {
	if err := l.shared(ctx); err != nil {
		return err
	}
	if faults := l.Divided.divideAll(ctx); len(faults) > 0 || ctx.Err() != nil {
		return errors.Join(faults...)
	}
	var faults []error
	l.units, l.without, faults = unitsOf(ctx, l.Engine, l.Routes.All(), l.Troubles.Persist)
	for _, rt := range l.Routes.All() {
		if rt.Spec.IsCopy() {
			continue
		}
		if err := route.CheckHandler(ctx, *rt.Now()); err != nil {
			faults = append(faults, &route.SetupError{Route: rt.Spec.Name, Err: err})
		}
	}
	if len(l.units) == 0 { // no route has a stream
		faults = append(faultsOf(l.without), faults...)
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	if err := l.look(ctx); err != nil {
		return err
	}
	for _, u := range l.without {
		u.note(u.err) // before anybody may ask for the status
	}
	return l.open(ctx)
}

// attempt bounds a try, and ends it when the server says that something is not permitted. It is begun anew when the connection was lost meanwhile.
func (r *Engine) attempt(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, source.SetupTimeout)
	defer cancel()
	ctx, stop := permission.Watch(ctx, r.Conn, upkeep.UpdatePrefix)
	defer stop()
	return permission.Cause(ctx, transient.Do(ctx, r.Conn, f))
}

// reach waits for JetStream.
func (l *startup) reach(ctx context.Context) error {
	return setupError("", l.Troubles.Persist(ctx, "JetStream", func(ctx context.Context) error {
		return l.attempt(ctx, func(ctx context.Context) error { return CheckJetStream(ctx, l.JS) })
	}))
}

// shared opens what all routes need.
func (l *startup) shared(ctx context.Context) error {
	faults := l.Stores.Open(ctx, stores.Opening{
		Persist: l.Troubles.Persist, Attempt: l.attempt, DeadPrefixes: deadPrefixes(l.Routes.All()), Began: l.Phases.Since(), Asked: l.Running.answerHand,
	})
	if err := setupError("", faults...); err != nil {
		return err
	}
	for _, rt := range l.Routes.All() {
		if rt.Guarded {
			l.Stores.Lives.Load().Cover(rt.Spec.AckWait)
		}
	}
	l.tallies.Open(l.Stores.Ledgers)
	return setupError("", l.Troubles.Persist(ctx, "relay's own streams", func(ctx context.Context) error { return transient.Made(l.attempt(ctx, l.Upkeep.SetRight)) }))
}

// deadPrefixes begin the subjects of the dead letters of routes; an empty one is that of the service.
func deadPrefixes(routes []*route.Route) (list []string) {
	for _, rt := range routes {
		list = append(list, rt.Spec.DeadPrefix)
	}
	return list
}

// setupError makes one of what went wrong. A missing permission stands for all of them: what came after it failed for the same
// reason.
func setupError(name string, errs ...error) error {
	var list []error
	for _, err := range errs {
		var v *permission.Error
		var setup *route.SetupError
		switch {
		case err == nil:
		case errors.As(err, &v):
			return &route.SetupError{Err: v}
		case errors.As(err, &setup):
			list = append(list, err)
		default:
			list = append(list, &route.SetupError{Route: name, Err: err})
		}
	}
	return errors.Join(list...)
}

// CheckJetStream asks whether there is JetStream for this account. The error is a *[route.SetupError] that says what to do, also
// when JetStream is only away for now.
func CheckJetStream(ctx context.Context, js jetstream.JetStream) error {
	_, err := js.AccountInfo(ctx)
	if err == nil {
		return nil
	}
	if here, _ := js.Conn().ConnectedServerJetStream(); errors.Is(err, jetstream.ErrJetStreamNotEnabled) &&
		(here || js.Conn().ConnectedClusterName() != "" || js.Options().Domain != "") {
		// JetStream is enabled, but no server answers for the account at the moment.
		err = fmt.Errorf("no server with JetStream answers: %w", nats.ErrNoResponders)
	}
	return &route.SetupError{Err: fmt.Errorf("JetStream: %w%s", err, hint(err))}
}

func hint(err error) string {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return " (start nats-server with -js)"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return " (enable it for this account)"
	case errors.Is(err, context.DeadlineExceeded):
		return " (no answer; is the account permitted to use $JS.API.> and _INBOX.>?)"
	}
	return ""
}

// look looks at all durables side by side, and returns what only people can mend.
func (l *startup) look(ctx context.Context) error {
	sideBySide(ctx, l.Conn, sourcesOf(l.units), lookAt)
	lookTwice(ctx, l.Conn, sourcesOf(l.units))
	var faults []error
	for _, s := range sourcesOf(l.units) {
		if s.Setup.Err != nil && !s.Setup.Waits() {
			faults = append(faults, setupError(s.Routes()[0].Name, s.Setup.Err))
		}
	}
	if err := setupError("", faults...); err != nil || ctx.Err() != nil {
		return err
	}
	// A route whose durable differs, or which has no stream, is stopped alone, unless there is no other.
	faults = faultsOf(l.without)
	for _, u := range l.units {
		for _, rt := range u.routes {
			if differs := u.Main.Setup.Differs(); differs != nil {
				faults = append(faults, &route.SetupError{Route: rt.Spec.Name, Err: fmt.Errorf("stopped: %w", differs)})
			} else if u.Main.Setup.LacksStream() {
				faults = append(faults, setupError(rt.Spec.Name, u.Main.Setup.Err))
			}
		}
	}
	if len(faults) == len(l.Routes.All()) {
		return errors.Join(faults...)
	}
	looked := slices.DeleteFunc(sourcesOf(l.units), func(s *source.Source) bool { return s.Setup.Err != nil })
	return l.Troubles.Persist(ctx, "permissions", func(ctx context.Context) error { return checkPermissions(ctx, l.prober, looked, l.sharedProbes()...) })
}

// lookTwice looks again where a stream was missing.
func lookTwice(ctx context.Context, nc *nats.Conn, list []*source.Source) {
	missing := slices.DeleteFunc(slices.Clone(list), func(s *source.Source) bool { return !errors.Is(s.Setup.Err, jetstream.ErrStreamNotFound) })
	if len(missing) == 0 {
		return
	}
	transient.Pause(ctx, placing.Twice)
	for _, s := range missing {
		s.Setup.Err = nil
	}
	sideBySide(ctx, nc, missing, lookAt)
}

// open makes and opens the durables that were looked at: those of routes first, then those of their replays.
func (l *startup) open(ctx context.Context) error {
	var mains, dues, opened []*source.Source
	for _, u := range l.units {
		mains = append(mains, u.Main)
	}
	sideBySide(ctx, l.Conn, mains, (*source.Source).OpenLooked)
	for _, u := range l.units {
		if u.Main.Setup.Err == nil {
			dues = append(dues, u.dues...)
		}
	}
	sideBySide(ctx, l.Conn, dues, (*source.Source).OpenLooked)
	var faults []error
	for _, s := range append(mains, dues...) {
		switch {
		case s.Setup.Err == nil:
			opened = append(opened, s)
		case !s.Setup.Waits():
			faults = append(faults, setupError(s.Routes()[0].Name, s.Setup.Err))
		}
	}
	if err := setupError("", faults...); err != nil {
		l.undo(ctx, opened)
		return err
	}
	for _, s := range opened {
		if !s.Leased() {
			l.Running.Include(s)
		}
	}
	return nil
}

// undo closes what a start opened that failed, and removes the durables that it made.
func (l *startup) undo(ctx context.Context, opened []*source.Source) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	sideBySide(ctx, l.Conn, opened, func(s *source.Source, ctx context.Context) error {
		return s.Unmake(ctx)
	})
}

// sideBySide calls f for sources, some at once, and notes what became of each. Who has not begun when the time of the step is
// over is as one that did not answer. f begins anew when the connection was lost meanwhile.
func sideBySide(ctx context.Context, nc *nats.Conn, list []*source.Source, f func(s *source.Source, ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, source.SetupTimeout)
	defer cancel()
	ctx, stop := permission.Watch(ctx, nc, upkeep.UpdatePrefix)
	defer stop()
	slots := make(chan struct{}, atOnce)
	var working sync.WaitGroup
	for _, s := range list {
		if s.Setup.Err != nil {
			continue
		}
		slots <- struct{}{}
		working.Go(func() {
			defer func() { <-slots }()
			if s.Setup.Err = ctx.Err(); s.Setup.Err == nil {
				one, cancel := context.WithTimeout(ctx, askTimeout)
				s.Setup.Err = transient.Do(one, nc, func(ctx context.Context) error { return f(s, ctx) })
				cancel()
			}
			s.Setup.Err = permission.Cause(ctx, s.Setup.Err)
		})
	}
	working.Wait()
}
