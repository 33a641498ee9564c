package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/consumer/internal/engine"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/internal/planned"
	"github.com/relaymq/relay/internal/subject"
)

// Relay runs routes on one connection. Create it with [New].
type Relay struct {
	engine *engine.Engine
	use    []Middleware // around the handlers of all routes
}

// New checks the routes and makes a Relay of them. Nothing is asked of the server before Run. The connection should
// reconnect for ever and must not buffer while it is away (nats.ReconnectBufSize(-1)): relay itself sends unconfirmed
// settlements again.
func New(nc *nats.Conn, cfg Config, routes ...Route) (*Relay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Fleet.Validate(); err != nil {
		return nil, fmt.Errorf("fleet.%w", err)
	}
	if !subject.IsName(cfg.Service) {
		return nil, fmt.Errorf("service: must be 1 to 64 letters, digits, - or _ (got %q)", cfg.Service)
	}
	if len(routes) == 0 {
		return nil, errors.New("at least one route is required")
	}
	var specs []route.Spec
	for _, rt := range routes {
		specs = append(specs, rt.spec(cfg.Use))
	}
	in, err := engine.New(nc, cfg.inside(), specs...)
	if in == nil {
		return nil, err
	}
	if faults := noNil("Use", cfg.Use); len(faults) > 0 {
		err = errors.Join(append(faults, err)...)
	}
	return &Relay{engine: in, use: cfg.Use}, err
}

// Run sets everything up, and handles messages until ctx is done. Then it drains: see [Config.Drain]. It returns nil
// after a clean drain, an error that is [ErrForcedDrain] when handlers had to be interrupted, one that is [ErrEscalated]
// when a key gave up under on_give_up: exit, one that is nats.ErrConnectionClosed when the connection was closed for good,
// and *[SetupError]s joined when it could not begin. It is called once. The contexts of handlers have the values of ctx.
func (r *Relay) Run(ctx context.Context) error { return r.engine.Run(ctx) }

// checked is a route with its defaults, and what is wrong with it by itself.
func checked(cfg Route) (Route, error) {
	cfg = cfg.WithDefaults()
	var faults []error
	if err := cfg.Validate(); err != nil {
		faults = append(faults, &SetupError{Route: cfg.Name, Err: err})
	}
	if (cfg.Handler == nil) == (cfg.Factory == nil) {
		faults = append(faults, &SetupError{Route: cfg.Name, Err: errors.New("exactly one of Handler and Factory must be set")})
	}
	for _, err := range noNil("Use", cfg.Use) {
		faults = append(faults, &SetupError{Route: cfg.Name, Err: err})
	}
	if _, ok := cfg.Handler.(BatchHandler); cfg.Batch != nil && !ok {
		faults = append(faults, &SetupError{Route: cfg.Name, Err: errors.New("batch: Handler must be a BatchHandler; of the built-in handlers only http is one")})
	}
	if f := cfg.Fallback; f != nil && f.Handler == nil {
		faults = append(faults, &SetupError{Route: cfg.Name, Err: errors.New("fallback: Handler must be set")})
	}
	return cfg, errors.Join(faults...)
}

// Instance is the name of this process: that of the Config, or one that was made.
func (r *Relay) Instance() string { return r.engine.Instance() }

// Opened is closed when the durable of each route is open, or was tried once: what is published from then on is after where they begin.
func (r *Relay) Opened() <-chan struct{} { return r.engine.Opened() }

// Ready returns nil while everything works, and otherwise what does not: the connection, something of relay's own that is away or was changed from outside,
// a route that has not started, stopped or stalls, a durable that the server says nothing of, dead letters that cannot be
// stored. A relay that drains is not ready.
func (r *Relay) Ready() error { return r.engine.Ready() }

// Collector gives the metrics of all routes; register it with a prometheus.Registerer.
func (r *Relay) Collector() prometheus.Collector { return r.engine.Collector() }

// Limits returns the limits that hold now.
func (r *Relay) Limits() map[string]Limit { return r.engine.Limits() }

// Plan compares the routes with what is on the server, and changes nothing there: to count messages it makes consumers that deliver nothing, and
// removes them. Streams in made do not exist yet, and somebody makes them before the Relay starts: routes find their subjects there. It is for a
// Relay that does not run. It waits for the server; an error means that this could not answer.
func (r *Relay) Plan(ctx context.Context, made ...jetstream.StreamConfig) (*planned.Plan, error) {
	return r.engine.Plan(ctx, made...)
}

// CheckJetStream asks whether there is JetStream for this account. The error is a *[SetupError] that says what to do, also
// when JetStream is only away for now.
func CheckJetStream(ctx context.Context, js jetstream.JetStream) error {
	return engine.CheckJetStream(ctx, js)
}
