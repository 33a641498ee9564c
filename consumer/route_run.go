package consumer

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
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/memory"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tenure"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
	"github.com/relaymq/relay/supervisor"
)

// asksAtOnce is how many questions about the messages of a route run at once, and how many records of a durable are deleted at once.
const asksAtOnce = settle.Paths

// route is a running Route.
type route struct {
	relay    *Relay
	cfg      Route // as it began; of what a change may change in place, now is asked
	settings settings
	log      *slog.Logger
	group    *supervise.Group
	path     *settle.Path // on which its messages are settled
	looks    *pool.Pool   // of what is known of messages: failures must not stand behind them
	intake   *intake.Route
	source   source.Route // as its durables know it
	memory   *memory.Account
	key      subject.Template
	unit     atomic.Pointer[unit] // nil until a stream for the route is found
	count    *counters
	callers  callers
	formers  *generations.Formers
	// parkedNow is what it has in the retry stream, as the server said lately.
	parkedNow backlog.Count
	// guarded: its handlers run in this process, and a message may end it.
	guarded bool

	standstill standstill
}

// newRoute makes a route. The limits are those that are to hold. It counts on from the former route whose place it takes; nil: it takes none.
func newRoute(r *Relay, cfg Route, limits map[string]Limit, former *route) *route {
	cfg = cfg.withOwnBytes(r.cfg.Use)
	rt := &route{relay: r, cfg: cfg, log: cfg.logger(r.log), looks: pool.New(asksAtOnce), guarded: cfg.guarded(), count: new(counters)}
	if former != nil {
		rt.count = former.count // before anything has a pointer to it
	}
	rt.settings.cfg.Store(&cfg)
	rt.callers.policy = cfg.callerPolicy(append(ownInboxes(r.nc.Opts.InboxPrefix), r.cfg.Service, r.stores.DeadPrefix(cfg.DeadLetter.Prefix))...)
	rt.callers.gates = rt.newGates()
	rt.standstill.route = rt
	rt.standstill.troubles = trouble.NewList(rt.log, func(what string, err error) { r.events.Trouble(cfg.Name, what, err) })
	rt.key, _ = subject.ParseTemplate(cfg.Key) // validated
	e := equip(cfg, r.cfg.Use, Route{}, nil)
	rt.settings.equipment.Store(e)
	opts := rt.options(cfg, e)
	opts.Limits = cfg.groupLimits(r.limits, limits)
	rt.group = supervise.New(opts)
	rt.path = settle.New(rt.settling())
	rt.memory = memory.New(cfg.mostHeld(opts), rt.more)
	rt.intake = &intake.Route{
		Path: rt.path, JS: r.js, Memory: rt.memory, Part: cfg.part != nil,
		Expect: func(subject string, sequence uint64) { rt.group.Expect(rt.keyOf(subject), sequence) },
	}
	rt.formers = generations.NewFormers(cfg.part)
	rt.source = rt.toSource()
	if former != nil {
		rt.source.FormerAckWait = former.source.FormerAckWait
		if former.cfg.AckWait != cfg.AckWait {
			rt.source.FormerAckWait = former.cfg.AckWait
		}
	}
	return rt
}

// outside tells whether the handlers of the route, but for its fallback, do their work in another process.
func (r Route) outside() bool {
	_, outside := r.Handler.(Outside)
	return outside || r.Outside && r.Factory != nil
}

// guarded tells whether a handler of the route may end this process.
func (r Route) guarded() bool {
	if f := r.Fallback; f != nil {
		if _, outside := f.Handler.(Outside); !outside {
			return true
		}
	}
	return !r.outside()
}

// withOwnBytes is the route with OwnBytes as it follows from the handler. A middleware runs here, and may change what it gets.
func (r Route) withOwnBytes(outer []Middleware) Route {
	r.OwnBytes = r.OwnBytes || r.outside() && len(outer)+len(r.Use) == 0
	return r
}

// options are those of the group of the route with that configuration, but for its limits.
func (rt *route) options(cfg Route, e *equipment) supervise.Options {
	r, name := rt.relay, rt.cfg.Name
	opts := supervise.Options{
		Config: cfg.Supervisor, Retry: cfg.Retry.Backoff, MaxAttempts: cfg.Retry.MaxAttempts, MaxAge: cfg.Retry.MaxAge,
		Concurrency: cfg.Concurrency, StashMessages: cfg.Stash.Messages, StashBytes: max(int(cfg.Stash.Bytes), largest(r.nc)),
		Ordered: cfg.Order == supervisor.OrderKey, AckWait: cfg.AckWait, Timeout: cfg.slotTime(),
		Values:   r.values.get,
		Event:    rt.event,
		Failed:   rt.standstill.fail,
		Escalate: func(err error) { r.escalate(fmt.Errorf("%w: route %s: %w", ErrEscalated, name, err)) },
		More:     rt.more,
		Hint:     rt.hint,
	}
	opts.Fallback = rt.fallbackOptions(cfg, e.fallback)
	if rt.guarded {
		opts.Alone = r.solo.Kick
	}
	if e.own != nil {
		opts.Shared, opts.Stuck = e.own, e.hung
	} else {
		opts.New, opts.Stop = cfg.children(r.cfg.Use), stopChild
	}
	return opts
}

// largest is the size of the largest message, with its subjects. Probes are taken from the stash: one that never fits
// would keep its key waiting until it is too old.
func largest(nc *nats.Conn) int { return int(nc.MaxPayload()) + 8<<10 }

// children makes those of a route with a factory.
func (r Route) children(outer []Middleware) func(ctx context.Context, key string) (any, error) {
	return func(ctx context.Context, key string) (any, error) {
		h, err := r.Factory(key)
		if err != nil {
			return nil, usercode.Said(err)
		}
		if h == nil {
			return nil, errors.New("the factory made no handler")
		}
		if s, ok := h.(Starter); ok {
			if err := s.Start(ctx); err != nil {
				return nil, usercode.Said(err)
			}
		}
		return wrapped{r.wrap(h, outer), h}, nil
	}
}

func stopChild(ctx context.Context, child any) {
	if s, ok := child.(wrapped).made.(Stopper); ok {
		_ = s.Stop(ctx) // it is gone either way
	}
}

// keyOf is the key of a message by its subject. One with too few tokens for the template is a key of its own.
func (rt *route) keyOf(literal string) string {
	switch rt.cfg.Key {
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
func (rt *route) more() {
	for _, s := range rt.relay.running.Sources() {
		if s.Serves(&rt.source) {
			s.Pulls.Wake()
		}
	}
}

// fail notes why the route is stopped; nil says that it is not any more.
func (st *standstill) fail(err error) {
	switch st.stop.Note(err, time.Now()) {
	case health.Over:
		st.log.Info("the route is no longer stopped")
	case health.Began:
		st.log.Error("route stopped; its messages wait, and the route retries by itself", "error", err)
		st.relay.events.Stopped(st.name(), err)
	case health.OtherReason:
		st.log.Error("route is still stopped, for another reason", "error", err)
	}
}

// trouble is why the route does not work, if so.
func (st *standstill) trouble() error {
	if err := st.troubles.Err(); err != nil {
		return err
	}
	if st.cfg.Leased() {
		if since, err := tenure.Trouble(st.relay.membership.Membership); err != nil {
			return fmt.Errorf("stopped since %s: %w", since.UTC().Format(time.RFC3339), err)
		}
	}
	if _, err := st.stop.Now(); err != nil {
		return fmt.Errorf("stopped: %w", err)
	}
	if err := st.path.Trouble(time.Now()); err != nil {
		return fmt.Errorf("cannot store dead letters: %w", err)
	}
	return nil
}

// event logs and reports what happened to a key or to the route.
func (rt *route) event(e supervise.Event) {
	rt.count.Moves[e.To].Add(1)
	rt.relay.events.Moved(rt.name(), e)
	attrs := []any{"from", e.From, "to", e.To, "why", e.Why}
	what := "route"
	if !e.Route {
		what = "key"
		attrs = append(attrs, "key", e.Key, "child", e.Child)
	}
	if e.To == supervise.Waiting {
		attrs = append(attrs, "delay", e.Delay.Round(time.Millisecond), "restarts", e.Restarts)
	}
	switch e.To {
	case supervise.Waiting:
		rt.log.Warn(what+" waits", attrs...)
	case supervise.Suspended:
		rt.log.Error(what+" is suspended", attrs...)
	case supervise.Flowing:
		rt.log.Info(what+" flows again", attrs...)
	default:
		rt.log.Info(what+" is "+e.To.String(), attrs...)
	}
}
