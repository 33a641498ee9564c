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
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/memory"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tenure"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
	"github.com/relaymq/relay/supervisor"
)

// asksAtOnce is how many questions about the messages of a route run at once, and how many records of a durable are deleted at once.
const asksAtOnce = settle.Paths

// route is a running Spec.
type Route struct {
	Home      *Home
	Spec      Spec // as it began; of what a change may change in place, now is asked
	Settings  settings
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
	own       func() *limit.Limit // ownLimit, for messages
	Callers   callers
	formers   *generations.Formers
	// parkedNow is what it has in the retry stream, as the server said lately.
	ParkedNow backlog.Count
	// guarded: its handlers run in this process, and a message may end it.
	Guarded bool

	Standstill Standstill
}

// newRoute makes a route. The limits are those that are to hold. It counts on from the former route whose place it takes; nil: it takes none.
func New(r *Home, cfg Spec, all map[string]limits.Limit, former *Route) *Route {
	rt := &Route{Home: r, Spec: cfg, Log: cfg.logger(r.Log), Questions: pool.New(asksAtOnce), Guarded: cfg.guarded(), Count: new(Counters)}
	if former != nil {
		rt.Count = former.Count // before anything has a pointer to it
	}
	rt.Settings.cfg.Store(&cfg)
	rt.Callers.policy = cfg.callerPolicy(append(ownInboxes(r.Conn.Opts.InboxPrefix), r.Config.Service, r.Stores.DeadPrefix(cfg.DeadPrefix))...)
	rt.Callers.Gates = rt.newGates()
	rt.Standstill.Route = rt
	rt.Standstill.Troubles = trouble.NewList(rt.Log, func(what string, err error) { r.Reports.Trouble(cfg.Name, what, err) })
	rt.key, _ = subject.ParseTemplate(cfg.Key) // validated
	e := equip(cfg, Spec{}, nil)
	rt.Settings.Equipment.Store(e)
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
	if s, ok := h.(interface{ Start(context.Context) error }); ok {
		if err := s.Start(ctx); err != nil {
			return nil, usercode.Said(err)
		}
	}
	call, _ := r.Code.Wrap(h)
	return &child{call, h}, nil
}

func stopChild(ctx context.Context, c any) {
	if s, ok := c.(*child).made.(interface{ Stop(context.Context) error }); ok {
		_ = s.Stop(ctx) // it is gone either way
	}
}

// keyOf is the key of a message by its subject. One with too few tokens for the template is a key of its own.
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
	for _, s := range rt.Home.Open() {
		if s.Serves(&rt.Source) {
			s.Pulls.Wake()
		}
	}
}

// fail notes why the route is stopped; nil says that it is not any more.
func (st *Standstill) fail(err error) {
	switch st.stop.Note(err, time.Now()) {
	case health.Over:
		st.Log.Info("the route is no longer stopped")
	case health.Began:
		st.Log.Error("route stopped; its messages wait, and the route retries by itself", "error", err)
		st.Home.Reports.Stopped(st.Name(), err)
	case health.OtherReason:
		st.Log.Error("route is still stopped, for another reason", "error", err)
	}
}

// trouble is why the route does not work, if so.
func (st *Standstill) Trouble() error {
	if err := st.Troubles.Err(); err != nil {
		return err
	}
	if st.Spec.Leased() {
		if since, err := tenure.Trouble(st.Home.Fleet); err != nil {
			return fmt.Errorf("stopped since %s: %w", since.UTC().Format(time.RFC3339), err)
		}
	}
	if _, err := st.stop.Now(); err != nil {
		return fmt.Errorf("stopped: %w", err)
	}
	if err := st.Path.Trouble(time.Now()); err != nil {
		return fmt.Errorf("cannot store dead letters: %w", err)
	}
	return nil
}

// event logs and reports what happened to a key or to the route.
func (rt *Route) event(e supervise.Event) {
	rt.Count.Moves[e.To].Add(1)
	rt.Home.Reports.Moved(rt.Name(), e)
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
		rt.Log.Warn(what+" waits", attrs...)
	case supervise.Suspended:
		rt.Log.Error(what+" is suspended", attrs...)
	case supervise.Flowing:
		rt.Log.Info(what+" flows again", attrs...)
	default:
		rt.Log.Info(what+" is "+e.To.String(), attrs...)
	}
}
