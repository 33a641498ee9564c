package engine

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/replayed"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/trouble"
)

// Engine runs routes on one connection: what Relay of package consumer is made of. Fields that are exported are so for the tests of that package.
type Engine struct {
	*route.Home
	Config Config
	connection
	services

	Routes     routeList
	Running    *running
	Durables   *source.Instance // what all durables share
	Divided    *dividedRoutes
	Membership *member
}

// connection is what is asked over that to NATS.
type connection struct {
	API      string // prefix of the JetStream API's subjects
	Link     *link.Link
	prober   *permission.Prober
	streams  *looks.Streams
	Listings durables.Listings
	placing  *placing.Placing
}

// services work for all routes beside them; see [serving.background].
type services struct {
	tallies     *tally.Keeper
	orders      *orders.Follower // of operators
	Orphans     *orphans.Watch
	generations *generations.Watch // of the partitions
}

// New makes an engine of routes; the error is what is wrong with them, also what [route.Spec.Fault] says. Nothing is asked of the server before Run.
func New(nc *nats.Conn, cfg Config, routes ...route.Spec) (*Engine, error) {
	r := &Engine{
		Home: &route.Home{
			Config: cfg.Config, Log: cfg.Logger, Conn: nc, Bounds: limits.NewSet(cfg.Limits), Phases: route.NewPhases(cfg.Drain), Reports: newEvents(nc, cfg.Config), Solo: suspects.NewSolo(),
		},
		Config: cfg, Running: newRunning(), connection: connection{API: jetstream.DefaultAPIPrefix},
	}
	r.OpenSources, r.IsDraining = r.Running.Sources, r.Running.IsDraining
	r.Troubles = trouble.NewList(cfg.Logger, func(what string, err error) { r.Reports.Trouble("", what, err) })
	var err error
	if cfg.Domain == "" {
		r.JS, err = jetstream.New(nc)
	} else {
		r.JS, err = jetstream.NewWithDomain(nc, cfg.Domain)
		r.API = "$JS." + cfg.Domain + ".API."
	}
	if err != nil {
		return nil, err
	}
	r.Stores = stores.New(r.JS, cfg.Config.Config, cfg.Logger)
	r.placing = placing.New(placing.Config{JS: r.JS, Attempt: r.attempt})
	r.Divided = newDividedRoutes(r)
	r.streams, r.Line, r.prober = looks.New(r.JS), caller.New(nc), permission.NewProber(nc)
	r.Membership = newMember(r)
	r.Fleet = r.Membership.Membership
	r.Behind = r.Divided.behind
	faults := limits.Check(cfg.Limits)
	names := make(map[string]bool)
	var list []*route.Route
	shortest := routes[0].AckWait // there is at least one
	for _, spec := range routes {
		if spec.Fault != nil {
			faults = append(faults, spec.Fault)
		}
		if names[spec.Name] {
			faults = append(faults, &route.SetupError{Route: spec.Name, Err: errors.New("two routes have this name")})
		}
		names[spec.Name] = true
		shortest = min(shortest, spec.AckWait)
		if err := spec.CheckLimits(r.Config.Limits); err != nil {
			faults = append(faults, &route.SetupError{Route: spec.Name, Err: err})
		}
		list = append(list, route.New(r.Home, spec, r.Config.Limits, nil))
	}
	r.Routes.set(list)
	r.Link = link.New(shortest)
	r.Archive = newArchive(r)
	r.Replayed = replayed.New(replayed.Config{JetStream: r.JS, Service: r.Config.Service, Log: r.Log})
	r.Upkeep = upkeep.New(upkeepConfig(r))
	r.tallies = tally.NewKeeper(tallyConfig(r))
	r.Routes.metrics = newMetrics(r)
	r.Orphans = orphans.NewWatch()
	r.generations = generations.NewWatch(r.Divided.watch())
	r.orders = orders.NewFollower(r.JS, cfg.Service, cfg.Replicas, r.Log, r.Routes.obey)
	r.Durables = instanceOf(r)
	for _, rt := range list {
		r.enter(rt)
	}
	return r, errors.Join(faults...)
}

// Instance is the name of this process.
func (r *Engine) Instance() string { return r.Config.Instance }

// Opened is closed when the durable of each route is open, or was tried once: what is published from then on is after where they begin.
func (r *Engine) Opened() <-chan struct{} { return r.Phases.Opened }
