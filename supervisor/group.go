package supervisor

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Options make a Group.
type Options struct {
	Config Config
	// Retry is the delay of a message by its failed attempts, MaxAttempts how many it gets (below 1: no bound), MaxAge
	// how long after its first failure it is given up (0: never).
	Retry       Backoff
	MaxAttempts int
	MaxAge      time.Duration

	Concurrency   int // how many messages run at once
	StashMessages int
	StashBytes    int
	Ordered       bool // one message of a key at a time, by sequence
	Timeout       time.Duration

	// Shared is the child of all keys when the handler has no state; otherwise New makes one for a key, and Stop, which
	// may be nil, ends it. Both get the route's timeout, may block and may panic.
	Shared any
	New    func(ctx context.Context, key string) (any, error)
	Stop   func(ctx context.Context, child any)

	// Event is told every change of state, in no particular goroutine; it must not block. May be nil.
	Event func(Event)
	// Failed is told once why the route stopped for good. May be nil.
	Failed func(error)
	// Escalate is told why a key gave up under on_give_up: exit. May be nil.
	Escalate func(error)
	// More is told that Free has grown. It must not block. May be nil.
	More func()
}

// Group supervises the messages of one route. Its methods are safe for concurrent use.
type Group struct {
	opts Options
	cfg  Config

	mu      sync.Mutex
	keys    map[string]*key
	ready   [2]keyQueue // keys with fresh messages, and with messages that were here before
	turn    int         // which of the two is next
	running runList
	overdue runList // past their deadline, with a little time left to return
	making  int     // children that are being made, each on a slot
	stuck   int     // hung runs whose goroutine has not returned
	window  int     // messages in window
	stash   usage
	stashed keyList // keys with a stash, least recently active first
	idle    keyList // keys without messages that are remembered for their failures
	alive   keyList // keys with a child of their own and no run, least recently used first
	kids    int     // children of keys
	wakes   wakeHeap
	timer   *time.Timer
	armed   time.Time
	route   routeState
	shared  *child
	meter   meter
	spilled time.Time
	// lowWater is at how many messages More is called, when asked for.
	lowWater int
	asked    bool
	recent   recentKeys
	paused   bool
	failed   error
	closing  bool
	idleNow  chan struct{} // while closing: closed when nothing runs any more
	goes     sync.WaitGroup
	counts   Counts
}

type usage struct{ messages, bytes int }

// Counts are totals since the start.
type Counts struct {
	Started   uint64 // attempts
	Panics    uint64
	Hangs     uint64
	Trips     uint64 // of keys
	RouteTrip uint64
	Evicted   uint64 // given back because the stash was full
	Children  uint64 // made
}

// remembered bounds the keys without messages that are kept because they failed lately.
const remembered = 100_000

// New makes a group with its defaults filled in.
func New(opts Options) *Group {
	opts.Config = opts.Config.WithDefaults()
	opts.Retry = opts.Retry.WithRetryDefaults()
	opts.Concurrency = cmp.Or(opts.Concurrency, 64)
	opts.StashMessages = cmp.Or(opts.StashMessages, 1000)
	opts.StashBytes = cmp.Or(opts.StashBytes, 64<<20)
	opts.Timeout = cmp.Or(opts.Timeout, 30*time.Second)
	if opts.Event == nil {
		opts.Event = func(Event) {}
	}
	if opts.More == nil {
		opts.More = func() {}
	}
	g := &Group{opts: opts, cfg: opts.Config, keys: make(map[string]*key)}
	g.stashed.id, g.idle.id, g.alive.id = 0, 1, 2
	if opts.New == nil {
		g.shared = &child{value: opts.Shared, number: 1, shared: true, started: time.Now()}
	}
	g.timer = time.AfterFunc(time.Hour, g.tick)
	g.timer.Stop()
	return g
}

// Deliver takes messages in. Each will be settled once: when it was handled, when it has to wait elsewhere, or at the end.
func (g *Group) Deliver(messages ...*Message) {
	var fx effects
	now := time.Now()
	g.mu.Lock()
	for _, m := range messages {
		g.deliver(m, now, &fx)
	}
	g.spill(now, &fx)
	g.startAll(now)
	g.unlock(&fx)
}

func (g *Group) deliver(m *Message, now time.Time, fx *effects) {
	m.arrived = now
	switch {
	case g.closing:
		fx.settle(m, Outcome{Action: GiveBack, Why: "shutting down"})
		return
	case g.failed != nil:
		fx.settle(m, Outcome{Action: GiveBack, Due: now.Add(overflowMax), Why: "the route has stopped"})
		return
	case g.spent(m):
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExhausted})
		return
	case g.expired(m, now):
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExpired})
		return
	}
	k := g.keys[m.Key]
	if k == nil {
		k = g.newKey(m.Key)
	}
	g.touch(k, now)
	g.recent.saw(m.Key, now)
	switch {
	case k.state == Suspended:
		g.refuse(k, m, now, fx)
	case m.Due.After(now) && !g.opts.Ordered:
		g.hold(k, m, now, fx)
	case g.held(k):
		if g.cfg.Forward == ForwardStash || g.isProbe(k, now) {
			g.putStash(k, m)
			g.bound(now, fx)
		} else {
			g.turnAway(k, m, now, fx)
		}
	case g.opts.Ordered && k.stash.n > 0: // behind a message that waits
		g.putStash(k, m)
		g.bound(now, fx)
	default:
		g.putWindow(k, m)
	}
	delete(k.outside, m.Sequence)
	g.attend(k, now, fx)
}

// held tells whether a message of k that arrives now has to wait for its key or its route.
func (g *Group) held(k *key) bool { return k.state != Flowing || g.route.state != Flowing || g.paused }

// isProbe tells whether a message that arrives now is taken as the probe that k waits for.
func (g *Group) isProbe(k *key, now time.Time) bool {
	return k.state == Probing && g.route.state == Flowing && !g.paused && k.probe == nil && k.messages() == 0 &&
		(*g.cfg.ForwardDuringGrace || !now.Before(k.until))
}

func (g *Group) spent(m *Message) bool {
	return g.opts.MaxAttempts > 0 && m.Attempts >= g.opts.MaxAttempts
}

func (g *Group) expired(m *Message, now time.Time) bool {
	return g.opts.MaxAge > 0 && !m.FirstFailure.IsZero() && now.Sub(m.FirstFailure) > g.opts.MaxAge
}

// hold keeps a message that came back before its own delay was over, or gives it back for what is left.
func (g *Group) hold(k *key, m *Message, now time.Time, fx *effects) {
	if m.Due.Sub(now) > holdEarly {
		fx.settle(m, Outcome{Action: GiveBack, Due: m.Due, Why: "came back early"})
		return
	}
	k.later.pushByDue(m)
	g.stashes(k, m)
	g.bound(now, fx)
}

// holdEarly is how early a message may come back and be held; the server restarts with delays cut to whole seconds.
const holdEarly = 2 * time.Second

// turnAway settles a message of a key that waits as forward says.
func (g *Group) turnAway(k *key, m *Message, now time.Time, fx *effects) {
	if g.cfg.Forward == ForwardDrop {
		fx.settle(m, Outcome{Action: DropMessage, Why: "its key waits and forward is drop", Err: k.lastErr})
		return
	}
	fx.settle(m, Outcome{Action: GiveBack, Due: later(g.waitOf(k), now.Add(minGiveBack)), Why: "its key waits"})
}

// minGiveBack keeps a message whose key is about to go on from coming and going.
const minGiveBack = 100 * time.Millisecond

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// waitOf is when the key's and the route's wait are both over.
func (g *Group) waitOf(k *key) time.Time {
	var t time.Time
	if k.state == Waiting || k.state == Probing {
		t = k.until
	}
	if g.route.state != Flowing {
		t = later(t, g.route.until)
	}
	return t
}

// Free is how many more messages the group could use now, and whether it starts any. While the route waits that is what
// the stash has room for, and nothing when it is full: the messages are better off where they are.
func (g *Group) Free() (n int, flows bool) {
	var fx effects
	now := time.Now()
	g.mu.Lock()
	defer g.unlock(&fx)
	if g.closing || g.paused || g.failed != nil {
		return 0, false
	}
	if g.route.state != Flowing {
		return max(0, min(g.opts.StashMessages-g.stash.messages, 2*g.opts.Concurrency)), false
	}
	size := g.meter.window(now, g.opts.Concurrency)
	g.spill(now, &fx)
	g.lowWater = size / 2
	g.asked = true
	return max(0, size-g.window-g.running.n), true
}

// meter sizes the window by how many messages were handled lately: handlers must not wait for the network, and messages
// must not wait here when another instance could have them.
type meter struct {
	since     time.Time
	done, was int
}

const (
	meterPeriod = 250 * time.Millisecond
	maxWindow   = 8192
)

func (m *meter) window(now time.Time, concurrency int) int {
	m.roll(now)
	return concurrency + min(max(concurrency, m.done, m.was), maxWindow)
}

func (m *meter) roll(now time.Time) {
	switch age := now.Sub(m.since); {
	case age < meterPeriod:
	case age < 2*meterPeriod:
		m.since, m.was, m.done = now, m.done, 0
	default:
		m.since, m.was, m.done = now, 0, 0
	}
}

// recentKeys remembers the last two distinct keys that had a message.
type recentKeys struct {
	last, other     string
	lastAt, otherAt time.Time
}

func (r *recentKeys) saw(key string, now time.Time) {
	if r.last != key {
		r.other, r.otherAt, r.last = r.last, r.lastAt, key
	}
	r.lastAt = now
}

// others tells whether a key other than this one had a message lately.
func (r *recentKeys) others(key string, now time.Time, within time.Duration) bool {
	at := r.lastAt
	if r.last == key {
		at = r.otherAt
	}
	return now.Sub(at) < within
}
