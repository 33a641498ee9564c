package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/beat"
)

// Run sets everything up, handles messages until ctx is done, and drains. It is called once. Its errors are those of Run in package consumer.
func (r *Engine) Run(ctx context.Context) error {
	if !r.Phases.Begin(time.Now()) {
		return errors.New("Run was called before")
	}
	r.Values.Set(ctx)
	ctx, escalate := context.WithCancelCause(ctx)
	defer escalate(nil)
	r.Escalate = escalate
	defer r.Reports.Begin()()
	defer endWithConnection(ctx, r.Conn, r.Log, escalate)()

	l := &startup{Engine: r}
	if err := l.reach(ctx); err != nil {
		return unlessStopped(ctx, err)
	}
	stopAnswering, err := l.serveControl()
	if err != nil {
		return unlessStopped(ctx, &route.SetupError{Err: err})
	}
	defer stopAnswering()
	stopHearing, err := r.Hints().Hear(r.Routes.hear)
	if err != nil {
		return unlessStopped(ctx, &route.SetupError{Err: err})
	}
	defer stopHearing()
	// The flush has the server report subscriptions that it does not permit, before the start asks which permissions are missing.
	_ = r.Conn.FlushTimeout(askTimeout)
	if err := l.start(ctx); err != nil || ctx.Err() != nil {
		r.Running.closeSources()
		return unlessStopped(ctx, err)
	}
	// Orders are known before the first message is pulled.
	var stopFollowing func()
	err = r.Troubles.Persist(ctx, "the orders of operators", func(c context.Context) error {
		return r.attempt(c, func(setup context.Context) (err error) {
			stopFollowing, err = r.orders.Follow(setup, ctx)
			return err
		})
	})
	if err != nil {
		r.Running.closeSources()
		return unlessStopped(ctx, setupError("", err))
	}
	defer stopFollowing()
	defer escalate(nil) // ends the following
	lives := r.Stores.Lives.Load()
	err = r.Troubles.Persist(ctx, "bucket "+r.Stores.InstancesBucket(), func(ctx context.Context) error { return r.attempt(ctx, lives.Begin) })
	if err != nil {
		r.Running.closeSources()
		return unlessStopped(ctx, setupError("", err))
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
		defer cancel()
		lives.End(end)
	}()
	err = (&serving{Engine: r, units: l.units, unplaced: l.without}).serve(ctx)
	if cause := ownCause(ctx); cause != nil {
		return cause
	}
	return err
}

// endWithConnection has Run end when the connection is closed for good: by whoever made it, or because it gave up
// reconnecting. Nothing works from then on. The function that it returns stops looking, and waits for that.
func endWithConnection(ctx context.Context, nc *nats.Conn, log *slog.Logger, end context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	closed := nc.StatusChanged(nats.CLOSED)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer nc.RemoveStatusListener(closed)
		if !nc.IsClosed() {
			select {
			case <-ctx.Done():
				return
			case <-closed:
			}
		}
		err := nats.ErrConnectionClosed
		if last := nc.LastError(); last != nil && !errors.Is(last, err) {
			err = fmt.Errorf("%w: %w", err, last)
		}
		log.Error("the connection to NATS was closed for good; relay ends", "error", err)
		end(fmt.Errorf("the connection to NATS was closed for good: %w", err))
	}()
	return func() {
		cancel()
		<-done
	}
}

// ownCause is why relay itself ended Run, if it did.
func ownCause(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, route.ErrEscalated) || errors.Is(cause, nats.ErrConnectionClosed) {
		return cause
	}
	return nil
}

// unlessStopped is what a set-up ended with. Told to stop in the middle of it, relay has nothing to complain of.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ownCause(ctx)
	}
	return err
}

// serving is a relay that has started, until its drain is over.
type serving struct {
	*Engine
	units    []*Unit    // that it started with
	unplaced []unplaced // routes that had no stream at the start
}

// serve runs the sources until ctx is done, and drains them.
func (r *serving) serve(ctx context.Context) error {
	// The sessions and the slow paths outlive ctx: settlements go on during the drain.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	// The slow paths end with the drain, whatever they are waiting for.
	slow, stopSlow := context.WithCancel(work)
	defer stopSlow()
	r.Phases.Ends, r.Phases.Work, r.Phases.Slow = ctx, work, slow
	for _, u := range r.units { // all of them before the first begins, which looks at the sources of all
		u.prepare()
	}
	for _, u := range r.units {
		u.begin()
	}
	var running sync.WaitGroup
	for _, service := range r.background(ctx, slow) {
		running.Go(func() { service(work) })
	}
	telling, stopTelling := context.WithCancel(work)
	var told sync.WaitGroup
	told.Go(func() { r.Replayed.Run(telling) })
	running.Go(func() {
		for _, u := range r.units {
			select {
			case <-u.tried:
			case <-ctx.Done():
				return
			}
		}
		close(r.Phases.Opened)
	})
	r.Phases.Serving.Store(true) // from here on routes may change
	<-ctx.Done()

	deadline, cancel := context.WithTimeout(work, r.Phases.DrainTime())
	defer cancel()
	context.AfterFunc(deadline, stopSlow)
	ended, interrupted := r.drain(deadline, func() {
		stopTelling()
		told.Wait()
	})
	stop()
	for _, u := range ended {
		u.end()
	}
	running.Wait()
	r.Line.Close()
	r.Stores.Records.Close()
	if interrupted > 0 {
		return fmt.Errorf("%w: %d of them after a drain of %v", ErrForcedDrain, interrupted, r.Phases.DrainTime())
	}
	return nil
}

// background is what all routes share and what works beside them until the drain is over. Some of it ends earlier: with ends, or with the slow paths.
func (r *serving) background(ends, slow context.Context) []func(work context.Context) {
	asked, lives := newAsked(r.Engine), r.Stores.Lives.Load()
	r.Orphans.Begin(orphansConfig(r.Engine, asked))
	list := []func(work context.Context){
		r.proveContact, r.Membership.Run, r.Upkeep.Sweep, r.Upkeep.WatchStuck, r.Upkeep.WatchUse, r.Upkeep.WatchSettings, r.Upkeep.WatchJobs,
		r.Orphans.Run, r.Running.watchFloors, r.Divided.run, r.tallies.Run,
		backlog.Watch{Server: asked, Parked: r.Routes.parked, Waiting: r.Running.waiting}.Run,
		func(work context.Context) { r.Bounds.Share(work, sharingOf(r.Engine)) },
		func(work context.Context) { r.Routes.watchStalls(work, r.Config.Stalled) },
		func(work context.Context) { r.Stores.Records.Watch(work, r.Log) },
		func(work context.Context) {
			lives.Watch(work, func(ctx context.Context, dead []string) {
				r.Running.giveBackOf(ctx, dead, takeover.Fellows{Conn: r.Conn, Log: r.Log, Service: r.Config.Service, Ask: lives.AskAll})
			})
		},
		func(context.Context) { r.place(ends) },
		func(context.Context) { r.Solo.Run(ends) },
		func(context.Context) { r.Routes.tryHeld(slow) },
	}
	if r.Archive != nil {
		list = append(list, r.Archive.Run)
	}
	return list
}

// drain ends all routes side by side, and then what tells the jobs of replays. What follows the end of ctx takes moments.
func (r *serving) drain(ctx context.Context, stopTelling func()) (units []*Unit, interrupted int) {
	r.Line.Drain()
	units = r.Running.Drain()
	var pulls sync.WaitGroup
	for _, u := range units {
		pulls.Go(u.stopPulling)
	}
	pulls.Wait()
	counts := make([]int, len(units))
	var ending sync.WaitGroup
	for i, u := range units {
		ending.Go(func() { counts[i] = u.drain(ctx) })
	}
	ending.Wait()
	r.Running.Wait() // the routes that end by one have verdicts to tell too
	// A message whose ack is not confirmed by now is delivered again. It is acknowledged then, unless somebody handled it meanwhile.
	confirm, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	stopTelling() // it may be in the middle of it, for as long as the server does not answer
	r.Replayed.Flush(confirm)
	r.Replayed.GiveUp()
	for i, u := range units {
		interrupted += counts[i]
		u.confirm(confirm)
	}
	var last sync.WaitGroup
	last.Go(func() { lastTallies(units, tally.Patience) })
	if r.Archive != nil {
		last.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tally.Patience)
			defer cancel()
			r.Archive.Flush(ctx)
		})
	}
	last.Wait()
	return units, interrupted
}

// confirmTimeout is how long a drain waits for the confirmation of the last settlements.
const confirmTimeout = 200 * time.Millisecond

// proveContact asks for a sign of life once a second, or more often where AckWait is short, so that the leases of messages that
// arrive on an idle connection count from lately.
func (r *serving) proveContact(ctx context.Context) {
	tick := beat.NewTicker(r.Link.Every())
	defer tick.Stop()
	for {
		tick.Reset(r.Link.Every())
		select {
		case <-ctx.Done():
			return
		case <-r.Link.Shorter(): // a route was added
		case <-tick.C:
		}
		r.Line.Look(time.Now())
		sent := time.Now()
		flush, cancel := context.WithTimeout(ctx, source.SetupTimeout)
		err := r.Conn.FlushWithContext(flush)
		cancel()
		switch trip := time.Since(sent); {
		case !r.Conn.IsConnected():
		case err == nil:
			r.Link.Measured(trip, r.Conn.Stats().InBytes, time.Now())
		default:
			r.Link.MeasuredSoFar(trip, r.Conn.Stats().InBytes, time.Now())
		}
		if err == nil {
			for _, s := range r.Running.Sources() {
				s.Pulls.Contact(sent)
			}
		}
	}
}

// ErrForcedDrain says that Run ended before all handlers had: their messages are delivered again.
var ErrForcedDrain = errors.New("handlers were interrupted")
