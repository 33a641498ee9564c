package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/memory"
	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
	"github.com/relaymq/relay/supervisor"
)

// asksAtOnce is how many questions about the messages of a route run at once, and how many records of a durable are deleted at once.
const asksAtOnce = settle.Paths

// Route is a route while it runs.
type Route struct {
	Home      *Home
	Spec      Spec // as it began; of what a change may change in place, Now is asked
	settings  settings
	Log       *slog.Logger
	Group     *supervise.Group
	Path      *settle.Path // on which its messages are settled
	Questions *pool.Pool   // of what is known of messages: failures must not stand behind them
	intake    *intake.Route
	Source    source.Route // as its durables know it
	Memory    *memory.Account
	key       subject.Template
	Place     atomic.Pointer[Place] // nil until a stream for the route is found
	Count     *Counters
	own       func() *limit.Limit // OwnLimit, made once for all messages
	Callers   callers
	formers   *generations.Formers
	// ParkedNow is what it has in the retry stream, as the server said lately.
	ParkedNow backlog.Count
	// Guarded: its handlers run in this process, and a message may end it.
	Guarded bool

	Standstill Standstill
}

// New makes a route. The limits are those that are to hold. It counts on from the former route whose place it takes; nil: it takes none.
func New(r *Home, cfg Spec, all map[string]limits.Limit, former *Route) *Route {
	rt := &Route{Home: r, Spec: cfg, Log: cfg.logger(r.Log), Questions: pool.New(asksAtOnce), Guarded: cfg.guarded(), Count: new(Counters)}
	if former != nil {
		rt.Count = former.Count // before anything has a pointer to it
	}
	rt.settings.cfg.Store(&cfg)
	rt.Callers.policy = cfg.callerPolicy(append(ownInboxes(r.Conn.Opts.InboxPrefix), r.Config.Service, r.Stores.DeadPrefix(cfg.DeadPrefix))...)
	rt.Callers.Gates = rt.newGates()
	rt.Standstill.Route = rt
	rt.Standstill.Troubles = trouble.NewList(rt.Log, func(what string, err error) { r.Reports.Trouble(cfg.Name, what, err) })
	rt.key, _ = subject.ParseTemplate(cfg.Key) // validated
	e := equip(cfg, Spec{}, nil)
	rt.settings.equipment.Store(e)
	opts := rt.options(cfg, e)
	opts.Limits = cfg.groupLimits(r.Bounds, all)
	rt.Group = supervise.New(opts)
	rt.Path = settle.New(rt.settling())
	rt.Memory = memory.New(cfg.mostHeld(opts), rt.more)
	rt.intake = &intake.Route{
		Path: rt.Path, JS: r.JS, Memory: rt.Memory, Part: cfg.Part != nil,
		Expect: func(subject string, sequence uint64) { rt.Group.Expect(rt.KeyOf(subject), sequence) },
	}
	rt.formers = generations.NewFormers(cfg.Part)
	rt.Source = rt.toSource()
	rt.own = rt.OwnLimit
	if former != nil {
		rt.Source.FormerAckWait = former.Source.FormerAckWait
		if former.Spec.AckWait != cfg.AckWait {
			rt.Source.FormerAckWait = former.Spec.AckWait
		}
	}
	return rt
}

// guarded tells whether a handler of the route may end this process.
func (r Spec) guarded() bool {
	if f := r.Fallback; f != nil && !f.Code.Outside {
		return true
	}
	return !r.Code.Outside
}

// options are those of the group of the route with that configuration, but for its limits.
func (rt *Route) options(cfg Spec, e *equipment) supervise.Options {
	r, name := rt.Home, rt.Spec.Name
	opts := supervise.Options{
		Config: cfg.Supervisor, Retry: cfg.Retry.Backoff, MaxAttempts: cfg.Retry.MaxAttempts, MaxAge: cfg.Retry.MaxAge,
		Concurrency: cfg.Concurrency, StashMessages: cfg.Stash.Messages, StashBytes: max(cfg.Stash.Bytes, largest(r.Conn)),
		Ordered: cfg.Order == supervisor.OrderKey, AckWait: cfg.AckWait, Timeout: cfg.slotTime(),
		Values:   r.Values.get,
		Event:    rt.event,
		Failed:   rt.Standstill.fail,
		Escalate: func(err error) { r.Escalate(fmt.Errorf("%w: route %s: %w", ErrEscalated, name, err)) },
		More:     rt.more,
		Hint:     rt.hint,
	}
	opts.Fallback = rt.fallbackOptions(cfg, e.fallback)
	if rt.Guarded {
		opts.Alone = r.Solo.Kick
	}
	if e.own != nil {
		opts.Shared, opts.Stuck = e.own, e.hung
	} else {
		opts.New, opts.Stop = cfg.children, stopChild
	}
	return opts
}

// largest is the size of the largest message, with its subjects. Probes are taken from the stash: one that never fits
// would keep its key waiting until it is too old.
func largest(nc *nats.Conn) int { return int(nc.MaxPayload()) + 8<<10 }

// child is a handler of one key: what is called, and what was made, which is to be stopped.
type child struct {
	call Call
	made any
}

// children makes those of a route whose keys have a handler each.
func (r Spec) children(ctx context.Context, key string) (any, error) {
	h, err := r.Code.New(key)
	if err != nil {
		return nil, usercode.Said(err)
	}
	if h == nil {
		return nil, errors.New("the factory made no handler")
	}
	if s, ok := h.(usercode.Starter); ok {
		if err := s.Start(ctx); err != nil {
			return nil, usercode.Said(err)
		}
	}
	call, _ := r.Code.Wrap(h)
	return &child{call, h}, nil
}

// stopChild ends a handler of one key.
func stopChild(ctx context.Context, c any) {
	if s, ok := c.(*child).made.(usercode.Stopper); ok {
		_ = s.Stop(ctx) // it is gone either way
	}
}

// KeyOf is the key of a message by its subject. One with too few tokens for the template is a key of its own.
func (rt *Route) KeyOf(literal string) string {
	switch rt.Spec.Key {
	case "subject":
		return literal
	case "route":
		return ""
	}
	key, err := rt.key.Expand(literal)
	if err != nil {
		return literal
	}
	return key
}

// more asks the pull loops of the route to look again.
func (rt *Route) more() {
	for _, s := range rt.Home.OpenSources() {
		if s.Serves(&rt.Source) {
			s.Pulls.Wake()
		}
	}
}

// toSource is what durables know of the route.
func (rt *Route) toSource() source.Route {
	c := rt.Spec
	return source.Route{
		Owner: rt, Name: c.Name, Called: rt.Name(), Log: rt.Log, Subjects: c.Subjects, AckWait: c.AckWait, Ordered: c.Order == supervisor.OrderKey,
		Start:  c.Start,
		Leased: c.Leased(), Part: c.Part, MaxAge: func() time.Duration { return rt.Now().Retry.MaxAge },
		Group: rt.Group, Path: rt.Path, Memory: rt.Memory, Intake: rt.intake, Looks: rt.Questions, Troubles: rt.Standstill.Troubles, Tally: &rt.Count.Tally,
		Within: rt.within,
	}
}

// Placed is what has to be known of the route to find its place.
func (r Spec) Placed() placing.Route {
	return placing.Route{
		Name: r.Name, Subjects: r.Subjects, Stream: r.Stream, Durable: r.Durable, Instances: r.Instances, Leased: r.Leased(), Divided: r.Partitions > 0,
	}
}

// IsUnplaced tells whether the route never had a stream.
func (rt *Route) IsUnplaced() bool { return rt.Place.Load() == nil }

// Drain has nothing start any more: what was not started goes back.
func (rt *Route) Drain() {
	rt.Group.Drain()
	rt.Callers.Gates.Close()
}

// Close lets handlers finish until ctx is done, and stops them. It returns how many were interrupted.
func (rt *Route) Close(ctx context.Context) (interrupted int) {
	rt.settings.end()
	interrupted = rt.Group.Close(ctx)
	rt.settings.equipment.Load().end(ctx, rt)
	rt.WaitFormers()
	rt.Questions.Wait() // before those that it submits to
	rt.Path.End()
	rt.Callers.Holding.Wait() // after whatever settles
	return interrupted
}

// WaitFormers waits for handlers that were replaced while the route ran.
func (rt *Route) WaitFormers() { rt.settings.formers.Wait() }

// settling is how the messages of the route are settled.
func (rt *Route) settling() settle.Config {
	r := rt.Home
	return settle.Config{
		Log: rt.Log, Route: rt.Name(), Instance: r.Config.Instance, LettersPrefix: r.Stores.DeadPrefix(rt.Spec.DeadPrefix),
		Ordered: rt.Spec.Order == supervisor.OrderKey, Guarded: rt.Guarded, Stores: r.Stores, Solo: r.Solo,
		Count: &rt.Count.RouteCount, Tally: &rt.Count.Tally, Troubles: rt.Standstill.Troubles, CalledBackFrom: r.Config.CalledBackFrom,
		Policy: func() settle.Policy {
			c, parked := rt.Now().Retry, r.Config.Parked
			return settle.Policy{
				ParkAfter: c.ParkAfter, MaxCrashes: c.MaxCrashes,
				Room: retry.Room{Messages: min(c.ParkMax, parked.Messages), Bytes: parked.Bytes},
			}
		},
		NotStored: func() { r.Upkeep.NotStored() }, More: rt.more, Gone: rt.Group.Gone, Dead: func(e dlq.Entry) { r.Reports.Dead(rt.Name(), e) },
	}
}
