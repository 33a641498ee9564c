package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/replayed"
	"github.com/relaymq/relay/consumer/internal/reports"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/trouble"
)

// Relay runs routes on one connection. Create it with [New].
type Relay struct {
	cfg Config
	nc  *nats.Conn
	js  jetstream.JetStream
	api string // prefix of the JetStream API's subjects
	log *slog.Logger

	routes  routeList
	running *running
	phases  *phases

	solo        *suspects.Solo
	link        *link.Link
	membership  *member
	line        *caller.Line // to the callers of messages
	replayed    *replayed.Verdicts
	events      reports.Reports
	archive     *archive.Writer // nil: what became of messages is not kept
	upkeep      *upkeep.Upkeep
	tallies     *tally.Keeper
	orders      *orders.Follower // of operators
	divided     *dividedRoutes
	generations *generations.Watch // of the partitions
	streams     *looks.Streams
	limits      *limits.Set
	orphans     *orphans.Watch
	listings    durables.Listings
	placing     *placing.Placing

	troubles *trouble.List // what is away that routes share
	prober   *permission.Prober

	stores   *stores.Stores // relay's own, opened by the start
	unplaced []unplaced     // routes that had no stream at the start

	escalate context.CancelCauseFunc // set by Run before anything runs that calls it

	values values
}

// New checks the routes and makes a Relay of them. Nothing is asked of the server before Run. The connection should
// reconnect for ever and must not buffer while it is away (nats.ReconnectBufSize(-1)): relay itself sends unconfirmed
// settlements again.
func New(nc *nats.Conn, cfg Config, routes ...Route) (*Relay, error) {
	cfg = cfg.withDefaults()
	r := &Relay{cfg: cfg, nc: nc, log: cfg.Logger, api: jetstream.DefaultAPIPrefix, solo: suspects.NewSolo(), limits: limits.NewSet(cfg.Limits), running: newRunning(), phases: newPhases(cfg.Drain), events: newEvents(nc, cfg)}
	r.troubles = trouble.NewList(cfg.Logger, func(what string, err error) { r.events.Trouble("", what, err) })
	var err error
	if cfg.Domain == "" {
		r.js, err = jetstream.New(nc)
	} else {
		r.js, err = jetstream.NewWithDomain(nc, cfg.Domain)
		r.api = "$JS." + cfg.Domain + ".API."
	}
	if err != nil {
		return nil, err
	}
	r.stores = stores.New(r.js, cfg.stores(), cfg.Logger)
	r.placing = placing.New(placing.Config{JS: r.js, Attempt: r.attempt})
	r.divided = newDividedRoutes(r)
	r.streams, r.line, r.prober = looks.New(r.js), caller.New(nc), permission.NewProber(nc)
	r.membership = newMember(r)
	if err := cfg.Fleet.Validate(); err != nil {
		return nil, fmt.Errorf("fleet.%w", err)
	}
	if !subject.IsName(cfg.Service) {
		return nil, fmt.Errorf("service: must be 1 to 64 letters, digits, - or _ (got %q)", cfg.Service)
	}
	if len(routes) == 0 {
		return nil, errors.New("at least one route is required")
	}
	faults := append(noNil("Use", cfg.Use), limits.Check(cfg.Limits)...)
	names := make(map[string]bool)
	var list []*route
	shortest := routes[0].WithDefaults().AckWait
	for _, cfg := range routes {
		cfg, err := checked(cfg)
		if err != nil {
			faults = append(faults, err)
		}
		if names[cfg.Name] {
			faults = append(faults, &SetupError{cfg.Name, errors.New("two routes have this name")})
		}
		names[cfg.Name] = true
		shortest = min(shortest, cfg.AckWait)
		if err := cfg.CheckLimits(r.cfg.Limits); err != nil {
			faults = append(faults, &SetupError{cfg.Name, err})
		}
		list = append(list, newRoute(r, cfg, r.cfg.Limits))
	}
	r.routes.set(list)
	r.link = link.New(shortest)
	r.archive = newArchive(r)
	r.replayed = replayed.New(replayed.Config{JetStream: r.js, Service: r.cfg.Service, Log: r.log})
	r.upkeep = upkeep.New(r.upkeepConfig())
	r.tallies = tally.NewKeeper(r.tallyConfig())
	r.routes.metrics = r.newMetrics()
	r.orphans = orphans.NewWatch()
	r.generations = generations.NewWatch(r.divided.watch())
	r.orders = orders.NewFollower(r.js, cfg.Service, cfg.Replicas, r.log, r.routes.obey)
	for _, rt := range list {
		r.enter(rt)
	}
	return r, errors.Join(faults...)
}

// checked is a route with its defaults, and what is wrong with it by itself.
func checked(cfg Route) (Route, error) {
	cfg = cfg.WithDefaults()
	var faults []error
	if err := cfg.Validate(); err != nil {
		faults = append(faults, &SetupError{cfg.Name, err})
	}
	if (cfg.Handler == nil) == (cfg.Factory == nil) {
		faults = append(faults, &SetupError{cfg.Name, errors.New("exactly one of Handler and Factory must be set")})
	}
	for _, err := range noNil("Use", cfg.Use) {
		faults = append(faults, &SetupError{cfg.Name, err})
	}
	if _, ok := cfg.Handler.(BatchHandler); cfg.Batch != nil && !ok {
		faults = append(faults, &SetupError{cfg.Name, errors.New("batch: Handler must be a BatchHandler; of the built-in handlers only http is one")})
	}
	if f := cfg.Fallback; f != nil && f.Handler == nil {
		faults = append(faults, &SetupError{cfg.Name, errors.New("fallback: Handler must be set")})
	}
	return cfg, errors.Join(faults...)
}

// Instance is the name of this process: that of the Config, or one that was made.
func (r *Relay) Instance() string { return r.cfg.Instance }

// Run sets everything up, and handles messages until ctx is done. Then it drains: see [Config.Drain]. It returns nil
// after a clean drain, an error that is [ErrForcedDrain] when handlers had to be interrupted, one that is [ErrEscalated]
// when a key gave up under on_give_up: exit, one that is nats.ErrConnectionClosed when the connection was closed for good,
// and *[SetupError]s joined when it could not begin. It is called once. The contexts of handlers have the values of ctx.
func (r *Relay) Run(ctx context.Context) error {
	if !r.phases.begin(time.Now()) {
		return errors.New("Run was called before")
	}
	r.values.set(ctx)
	ctx, escalate := context.WithCancelCause(ctx)
	defer escalate(nil)
	r.escalate = escalate
	defer r.events.Begin()()
	defer r.endWithConnection(ctx, escalate)()

	if err := r.reach(ctx); err != nil {
		return unlessStopped(ctx, err)
	}
	stopAnswering, err := r.serveControl()
	if err != nil {
		return unlessStopped(ctx, &SetupError{Err: err})
	}
	defer stopAnswering()
	stopHearing, err := peerHints(r).Hear(r.routes.hear)
	if err != nil {
		return unlessStopped(ctx, &SetupError{Err: err})
	}
	defer stopHearing()
	// The flush has the server report subscriptions that it does not permit, before the start asks which permissions are missing.
	_ = r.nc.FlushTimeout(askTimeout)
	units, err := r.start(ctx)
	if err != nil || ctx.Err() != nil {
		r.running.closeSources()
		return unlessStopped(ctx, err)
	}
	// Orders are known before the first message is pulled.
	var stopFollowing func()
	err = r.troubles.Persist(ctx, "the orders of operators", func(c context.Context) error {
		return r.attempt(c, func(setup context.Context) (err error) {
			stopFollowing, err = r.orders.Follow(setup, ctx)
			return err
		})
	})
	if err != nil {
		r.running.closeSources()
		return unlessStopped(ctx, setupError("", err))
	}
	defer stopFollowing()
	defer escalate(nil) // ends the following
	if l := r.stores.Lives.Load(); l != nil {
		err := r.troubles.Persist(ctx, "bucket "+r.stores.InstancesBucket(), func(ctx context.Context) error { return r.attempt(ctx, l.Begin) })
		if err != nil {
			r.running.closeSources()
			return unlessStopped(ctx, setupError("", err))
		}
	}
	defer func() {
		if l := r.stores.Lives.Load(); l != nil { // also of a route that was added
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
			defer cancel()
			l.End(end)
		}
	}()
	err = r.serve(ctx, units)
	if cause := ownCause(ctx); cause != nil {
		return cause
	}
	return err
}

// endWithConnection has Run end when the connection is closed for good: by whoever made it, or because it gave up
// reconnecting. Nothing works from then on. The function that it returns stops looking, and waits for that.
func (r *Relay) endWithConnection(ctx context.Context, end context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	closed := r.nc.StatusChanged(nats.CLOSED)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.nc.RemoveStatusListener(closed)
		if !r.nc.IsClosed() {
			select {
			case <-ctx.Done():
				return
			case <-closed:
			}
		}
		err := nats.ErrConnectionClosed
		if last := r.nc.LastError(); last != nil && !errors.Is(last, err) {
			err = fmt.Errorf("%w: %w", err, last)
		}
		r.log.Error("the connection to NATS was closed for good; relay ends", "error", err)
		end(fmt.Errorf("the connection to NATS was closed for good: %w", err))
	}()
	return func() {
		cancel()
		<-done
	}
}

// ownCause is why relay itself ended Run, if it did.
func ownCause(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrEscalated) || errors.Is(cause, nats.ErrConnectionClosed) {
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

// Opened is closed when the durable of each route is open, or was tried once: what is published from then on is after where they begin.
func (r *Relay) Opened() <-chan struct{} { return r.phases.opened }

// serve runs the sources until ctx is done, and drains them.
func (r *Relay) serve(ctx context.Context, units []*unit) error {
	// The sessions and the slow paths outlive ctx: settlements go on during the drain.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	// The slow paths end with the drain, whatever they are waiting for.
	slow, stopSlow := context.WithCancel(work)
	defer stopSlow()
	r.phases.ends, r.phases.work, r.phases.slow = ctx, work, slow
	var running sync.WaitGroup
	for _, u := range units { // all of them before the first begins, which looks at the sources of all
		u.prepare()
	}
	for _, u := range units {
		u.begin()
	}
	running.Go(func() { r.proveContact(work) })
	running.Go(func() { r.membership.Run(work) })
	running.Go(func() { r.upkeep.Sweep(work) })
	running.Go(func() { r.upkeep.WatchStuck(work) })
	asked := newAsked(r)
	r.orphans.Begin(r.orphansConfig(asked))
	running.Go(func() { r.orphans.Run(work) })
	running.Go(func() {
		if l := r.stores.Lives.Load(); l != nil {
			l.Watch(work, func(ctx context.Context, dead []string) {
				r.running.giveBackOf(ctx, dead, takeover.Fellows{Conn: r.nc, Log: r.log, Service: r.cfg.Service, Ask: l.AskAll})
			})
		}
	})
	running.Go(func() { r.running.watchFloors(work) })
	running.Go(func() { r.limits.Share(work, r.sharing()) })
	running.Go(func() { r.divided.run(work) })
	running.Go(func() { r.place(ctx, r.unplaced) })
	telling, stopTelling := context.WithCancel(work)
	var told sync.WaitGroup
	told.Go(func() { r.replayed.Run(telling) })
	if r.archive != nil {
		running.Go(func() { r.archive.Run(work) })
	}
	running.Go(func() { r.upkeep.WatchUse(work) })
	running.Go(func() { r.routes.watchStalls(work, r.cfg.Stalled) })
	running.Go(func() { r.upkeep.WatchSettings(work) })
	running.Go(func() { backlog.Watch{Server: asked, Parked: r.routes.parked, Waiting: r.running.waiting}.Run(work) })
	running.Go(func() { r.tallies.Run(work) })
	running.Go(func() { r.upkeep.WatchJobs(work) })
	running.Go(func() { r.solo.Run(ctx) })
	running.Go(func() { r.stores.Records.Watch(work, r.log) })
	running.Go(func() { r.routes.tryHeld(slow) })
	running.Go(func() {
		for _, u := range units {
			select {
			case <-u.tried:
			case <-ctx.Done():
				return
			}
		}
		close(r.phases.opened)
	})
	r.phases.serving.Store(true) // from here on routes may change
	<-ctx.Done()

	deadline, cancel := context.WithTimeout(work, r.phases.drainTime())
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
	r.line.Close()
	r.stores.Records.Close()
	if interrupted > 0 {
		return fmt.Errorf("%w: %d of them after a drain of %v", ErrForcedDrain, interrupted, r.phases.drainTime())
	}
	return nil
}

// drain ends all routes side by side, and then what tells the jobs of replays. What follows the end of ctx takes moments.
func (r *Relay) drain(ctx context.Context, stopTelling func()) (units []*unit, interrupted int) {
	r.line.Drain()
	units = r.running.Drain()
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
	r.running.Wait() // the routes that end by one have verdicts to tell too
	// A message whose ack is not confirmed by now is delivered again. It is acknowledged then, unless somebody handled it meanwhile.
	confirm, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	stopTelling() // it may be in the middle of it, for as long as the server does not answer
	r.replayed.Flush(confirm)
	r.replayed.GiveUp()
	for i, u := range units {
		interrupted += counts[i]
		u.confirm(confirm)
	}
	var last sync.WaitGroup
	last.Go(func() { lastTallies(units, tally.Patience) })
	if r.archive != nil {
		last.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tally.Patience)
			defer cancel()
			r.archive.Flush(ctx)
		})
	}
	last.Wait()
	return units, interrupted
}

// confirmTimeout is how long a drain waits for the confirmation of the last settlements.
const confirmTimeout = 200 * time.Millisecond

// proveContact asks for a sign of life once a second, or more often where AckWait is short, so that the leases of messages that
// arrive on an idle connection count from lately.
func (r *Relay) proveContact(ctx context.Context) {
	tick := beat.NewTicker(r.link.Every())
	defer tick.Stop()
	for {
		tick.Reset(r.link.Every())
		select {
		case <-ctx.Done():
			return
		case <-r.link.Shorter(): // a route was added
		case <-tick.C:
		}
		r.line.Look(time.Now())
		sent := time.Now()
		flush, cancel := context.WithTimeout(ctx, setupTimeout)
		err := r.nc.FlushWithContext(flush)
		cancel()
		if r.nc.IsConnected() {
			r.link.Measured(time.Since(sent), err == nil, r.nc.Stats().InBytes, time.Now())
		}
		if err == nil {
			for _, s := range r.running.Sources() {
				s.pulls.Contact(sent)
			}
		}
	}
}
