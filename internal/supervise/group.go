package supervise

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// Options make a Group.
type Options struct {
	Config supervisor.Config
	// Retry is the delay of a message by its failed attempts, MaxAttempts how many it gets (below 1: no bound), MaxAge
	// how long after its first failure it is given up (0: never).
	Retry       supervisor.Backoff
	MaxAttempts int
	MaxAge      time.Duration

	Concurrency   int // how many messages run at once
	StashMessages int
	StashBytes    int           // a larger message cannot wait here, nor be a probe: it is given back
	Ordered       bool          // one message of a key at a time, by sequence
	AckWait       time.Duration // after which the server delivers again what nobody has settled
	Timeout       time.Duration

	// Limits are bounds that it shares with other groups; nil: none.
	Limits *Limits

	// Shared is the child of all keys when the handler has no state; otherwise New makes one for a key, and Stop, which
	// may be nil, ends it. Both get the route's timeout, may block and may panic.
	Shared any
	New    func(ctx context.Context, key string) (any, error)
	Stop   func(ctx context.Context, child any)

	// Values are what the contexts of handlers, and of New and Stop, give for a key. It must not block. May be nil.
	Values func(key any) any

	// Event is told every change of state, in no particular goroutine; it must not block. May be nil.
	Event func(Event)
	// Failed is told why the route stopped, for a fault that no message is to blame for, or why it still is when that is another
	// reason, and nil when it goes on. It tries again by itself. May be nil.
	Failed func(error)
	// Escalate is told why a key gave up under on_give_up: exit. May be nil.
	Escalate func(error)
	// Hint has the groups of the same route in other processes hear something: see [Group.Hear]. It must not block. May be nil: there are
	// none.
	Hint func(Hint)
	// More is called when Free has grown. It must not block. May be nil.
	More func()
	// Alone is told that a message waits which may only run alone, and, while the group is held, that nothing runs any
	// more. It is called with the group's lock held: it must neither block nor call the group. Without it such messages
	// start like others.
	Alone func()
	// Stuck is how many calls of the handler were given up before their attempts were, and run nevertheless. It must not block and not
	// call the group. May be nil.
	Stuck func() int
	// Fallback gets messages that wait, or whose attempts are spent. Nil: there is none.
	Fallback *Fallback

	// near says that what is given back is soon here again, and cannot be called back.
	near bool
}

// Group supervises the messages of one route. Its methods are safe for concurrent use.
type Group struct {
	opts  Options        // with their defaults; what Change may change is read under mu
	goes  sync.WaitGroup // the goroutines that Close waits for
	quiet chan struct{}  // closed when the group is closing and nothing runs any more

	mu   sync.Mutex
	turn turn // of whoever holds mu; only lock gives it
}

// state is all that a group knows, under its lock.
type state struct {
	keys      map[string]*key
	unused    sync.Pool // of *key
	window    window    // what may start as soon as there is a slot
	stash     stash     // what waits for its key, its route or its time
	slots     slots     // what runs, and who is next
	nursery   nursery   // the children of keys
	route     route     // whether anything starts at all
	aside     aside     // what was given back, and is called back when what it waits for is over
	order     order     // of keys whose messages start in the order of the stream
	fallback  fallback  // the second handler, and what it has
	limits    *limited  // bounds that are shared with others; nil: none
	lingering list[key] // keys without messages that are remembered for their failures
}

// Counts are totals since the start.
type Counts struct {
	Started   uint64 // attempts
	Panics    uint64
	Hangs     uint64
	Trips     uint64 // of keys
	RouteTrip uint64
	DeadTrip  uint64 // suspensions of the route
	Evicted   uint64 // given back because the stash was full
	Children  uint64 // made
}

func (o Options) withDefaults() Options {
	o.Config = o.Config.WithDefaults()
	o.Retry = tabulate(o.Retry.WithRetryDefaults())
	o.Config.Restart = tabulate(o.Config.Restart)
	o.Concurrency = cmp.Or(o.Concurrency, 64)
	o.StashMessages = cmp.Or(o.StashMessages, 1000)
	o.StashBytes = cmp.Or(o.StashBytes, 64<<20)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.AckWait = cmp.Or(o.AckWait, 30*time.Second)
	return o
}

// New makes a group with its defaults filled in.
func New(opts Options) *Group {
	opts = opts.withDefaults()
	if opts.Event == nil {
		opts.Event = func(Event) {}
	}
	if opts.More == nil {
		opts.More = func() {}
	}
	g := &Group{opts: opts, quiet: make(chan struct{})}
	t := g.lock()
	defer t.unlock()
	t.group, t.opts, t.cfg = g, &g.opts, &g.opts.Config
	t.keys = make(map[string]*key)
	t.stash.most = usage{opts.StashMessages, opts.StashBytes}
	t.slots = newSlots(opts.Concurrency, opts.Timeout, &t.moment)
	t.order.moment, t.aside.moment = &t.moment, &t.moment
	t.limits = newLimited(opts.Limits, &t.moment)
	t.nursery = newNursery(opts, t.now)
	t.route = newRoute(opts.Config, &t.moment)
	t.fallback = newFallback(opts.Fallback, &t.moment)
	t.alarm.timer = time.AfterFunc(time.Hour, g.tick)
	t.alarm.timer.Stop()
	return g
}

// leave is the end of a goroutine that Close waits for.
func (g *Group) leave() { g.goes.Done() }
