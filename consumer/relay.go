package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/replayed"
	"github.com/relaymq/relay/consumer/internal/reports"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/archive"
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
	log *slog.Logger
	connection
	services

	routes     routeList
	running    *running
	sources    *source.Instance // what all durables share
	phases     *phases
	divided    *dividedRoutes
	limits     *limits.Set
	membership *member
	events     reports.Reports
	troubles   *trouble.List  // what is away that routes share
	stores     *stores.Stores // relay's own, opened by the start

	escalate context.CancelCauseFunc // set by Run before anything runs that calls it
	values   values
}

// connection is that to NATS, and what is asked over it.
type connection struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	api      string // prefix of the JetStream API's subjects
	link     *link.Link
	line     *caller.Line // to the callers of messages
	prober   *permission.Prober
	streams  *looks.Streams
	listings durables.Listings
	placing  *placing.Placing
}

// services work for all routes beside them; see [serving.background].
type services struct {
	upkeep      *upkeep.Upkeep
	tallies     *tally.Keeper
	orders      *orders.Follower // of operators
	orphans     *orphans.Watch
	generations *generations.Watch // of the partitions
	replayed    *replayed.Verdicts
	archive     *archive.Writer // nil: what became of messages is not kept
	solo        *suspects.Solo
}

// New checks the routes and makes a Relay of them. Nothing is asked of the server before Run. The connection should
// reconnect for ever and must not buffer while it is away (nats.ReconnectBufSize(-1)): relay itself sends unconfirmed
// settlements again.
func New(nc *nats.Conn, cfg Config, routes ...Route) (*Relay, error) {
	cfg = cfg.withDefaults()
	r := &Relay{
		cfg: cfg, log: cfg.Logger, limits: limits.NewSet(cfg.Limits), running: newRunning(), phases: newPhases(cfg.Drain), events: newEvents(nc, cfg),
		connection: connection{nc: nc, api: jetstream.DefaultAPIPrefix}, services: services{solo: suspects.NewSolo()},
	}
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
		list = append(list, newRoute(r, cfg, r.cfg.Limits, nil))
	}
	r.routes.set(list)
	r.link = link.New(shortest)
	r.archive = newArchive(r)
	r.replayed = replayed.New(replayed.Config{JetStream: r.js, Service: r.cfg.Service, Log: r.log})
	r.upkeep = upkeep.New(upkeepConfig(r))
	r.tallies = tally.NewKeeper(tallyConfig(r))
	r.routes.metrics = newMetrics(r)
	r.orphans = orphans.NewWatch()
	r.generations = generations.NewWatch(r.divided.watch())
	r.orders = orders.NewFollower(r.js, cfg.Service, cfg.Replicas, r.log, r.routes.obey)
	r.sources = instanceOf(r)
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

// Opened is closed when the durable of each route is open, or was tried once: what is published from then on is after where they begin.
func (r *Relay) Opened() <-chan struct{} { return r.phases.opened }
