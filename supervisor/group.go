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
	StashBytes    int           // a larger message cannot wait here, nor be a probe: it is given back
	Ordered       bool          // one message of a key at a time, by sequence
	AckWait       time.Duration // after which the server delivers again what nobody has settled
	Timeout       time.Duration

	// Shared is the child of all keys when the handler has no state; otherwise New makes one for a key, and Stop, which
	// may be nil, ends it. Both get the route's timeout, may block and may panic.
	Shared any
	New    func(ctx context.Context, key string) (any, error)
	Stop   func(ctx context.Context, child any)

	// Event is told every change of state, in no particular goroutine; it must not block. May be nil.
	Event func(Event)
	// Failed is told why the route stopped, for a fault that no message is to blame for, and nil when it goes on. It tries
	// again by itself. May be nil.
	Failed func(error)
	// Escalate is told why a key gave up under on_give_up: exit. May be nil.
	Escalate func(error)
	// More is told that Free has grown. It must not block. May be nil.
	More func()
	// Alone is told that a message waits which may only run alone, and, while the group is held, that nothing runs any
	// more. It is called with the group's lock held: it must neither block nor call the group. Without it such messages
	// start like others.
	Alone func()
}

// Group supervises the messages of one route. Its methods are safe for concurrent use.
type Group struct {
	opts Options
	cfg  Config

	mu          sync.Mutex
	keys        map[string]*key
	unused      sync.Pool   // of *key
	ready       [2]keyQueue // keys with fresh messages, and with messages that were here before
	turn        int         // which of the two is next
	crowded     keyQueue    // keys that have slots and may not have one of the last
	waking      bool        // a goroutine was started that has not taken a message yet
	running     runList
	overdue     runList  // past their deadline, with a little time left to return
	births      []*birth // children that are being made, each on a slot; in the order they began
	stuck       int      // hung runs whose goroutine has not returned
	window      usage    // what was not started yet, but for the stash
	alones      usage    // of that, what must run alone
	stash       usage
	failing     usage   // of that, what failed before
	stashed     keyList // keys with a stash, least recently active first
	failingKeys keyList // keys with messages in the stash that failed before
	retrying    retrying
	idle        keyList  // keys without messages that are remembered for their failures
	alive       keyList  // keys with a child of their own and no run, least recently used first
	kids        int      // children of keys, with those that have to finish their last runs
	orphans     keyQueue // keys that wait for another key's child to end
	wakes       wakeHeap
	timer       *time.Timer
	armed       time.Time
	route       routeState
	shared      *child
	meter       meter
	spilled     time.Time
	// lowWater is at how many messages More is called, when asked for.
	lowWater int
	asked    bool
	gate     gate
	progress time.Time // ordered: when a key with messages in the stash finished one
	called   int       // ordered: messages that were called back, and are on their way
	// callsReady is when they are ready to come.
	callsReady time.Time
	glanced    time.Time // ordered: when more was asked for although the stash is full and later messages wait
	recent     recentKeys
	paused     bool
	held       bool     // for messages that run alone: nothing else starts
	freed      bool     // while one of these is chosen
	alone      keyQueue // keys whose next message must run alone
	closing    bool
	ended      bool          // closed: the timer stays off
	idleNow    chan struct{} // while closing: closed when nothing runs any more
	goes       sync.WaitGroup
	counts     Counts
}

type usage struct{ messages, bytes int }

func (u *usage) add(m *Message, n int) { u.messages, u.bytes = u.messages+n, u.bytes+n*m.Size }

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
	opts.Retry = opts.Retry.WithRetryDefaults().table()
	opts.Config.Restart = opts.Config.Restart.table()
	opts.Concurrency = cmp.Or(opts.Concurrency, 64)
	opts.StashMessages = cmp.Or(opts.StashMessages, 1000)
	opts.StashBytes = cmp.Or(opts.StashBytes, 64<<20)
	opts.Timeout = cmp.Or(opts.Timeout, 30*time.Second)
	opts.AckWait = cmp.Or(opts.AckWait, 30*time.Second)
	if opts.Event == nil {
		opts.Event = func(Event) {}
	}
	if opts.More == nil {
		opts.More = func() {}
	}
	g := &Group{opts: opts, cfg: opts.Config, keys: make(map[string]*key)}
	g.stashed.id, g.idle.id, g.alive.id, g.failingKeys.id = 0, 1, 2, 3
	g.route.evidence = newEvidence(g.cfg)
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
	now := g.lock()
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
		g.giveBack(m, time.Time{}, now, "shutting down", nil, fx)
		return
	}
	k := g.keys[m.Key]
	if k == nil {
		k = g.newKey(m.Key)
	}
	k.outside.back(m.Sequence)
	g.admit(k, m, now, fx)
	g.attend(k, now, fx)
}

// admit finds the place of a message that arrived.
func (g *Group) admit(k *key, m *Message, now time.Time, fx *effects) {
	switch {
	case g.spent(m):
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExhausted})
		return
	case g.expired(m, now):
		fx.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExpired})
		return
	}
	if g.paused {
		g.turnAwayPaused(m, now, fx)
		return
	}
	g.recent.saw(m.Key, now)
	if !m.judged() && k.state == Flowing {
		g.hurryRoute(now)
	}
	early := m.Due.After(now) && !g.opts.Ordered
	switch {
	case k.state == Suspended:
		g.refuse(k, m, now, fx)
		return
	case !early && g.waits(k) && g.cfg.Forward != ForwardStash && !g.isProbe(k, m, now):
		g.turnAway(k, m, now, fx)
		return
	}
	g.touch(k, now) // not for a message that goes away: it would keep an idle child in the place of one that is needed
	switch {
	case early:
		g.hold(k, m, now, fx)
	case g.waits(k), g.opts.Ordered && (k.stash.n > 0 || g.blocked(k, m, now)):
		g.putStash(k, m, now, fx)
		g.bound(now, fx)
	default:
		g.putWindow(k, m)
	}
}

// waits tells whether a message of k that arrives now has to wait for its key or its route. An operator's pause is no
// such wait: nothing failed, and forward does not apply to it.
func (g *Group) waits(k *key) bool { return k.state != Flowing || g.route.state != Flowing }

// isProbe tells whether a message that arrives now is what k, the route, or both wait for to probe with. Without it, no
// probe would ever be found where forward keeps no stash.
func (g *Group) isProbe(k *key, m *Message, now time.Time) bool {
	if g.opts.Ordered && g.blocked(k, m, now) {
		return false // it could not start, and would keep out the one that can
	}
	switch k.state {
	case Flowing:
	case Probing:
		if k.probe != nil || k.messages() > 0 && !(g.opts.Ordered && m.Sequence < k.stash.first.Sequence) || !*g.cfg.ForwardDuringGrace && now.Before(k.until) {
			return false
		}
	default:
		return false
	}
	if g.route.state == Flowing {
		return true
	}
	if g.route.state != Probing || !g.route.round.wants(!m.judged(), now) {
		return false
	}
	of, other := g.chooseRouteProbe(!m.judged(), now)
	return other == nil || g.opts.Ordered && of == k && m.Sequence < other.Sequence // other would have to wait for m
}

func (g *Group) spent(m *Message) bool {
	return g.opts.MaxAttempts > 0 && m.Attempts >= g.opts.MaxAttempts
}

func (g *Group) expired(m *Message, now time.Time) bool {
	return g.opts.MaxAge > 0 && !m.FirstFailure.IsZero() && now.Sub(m.FirstFailure) > g.opts.MaxAge
}

// hold keeps a message that came back before its own delay was over, or gives it back for what is left.
func (g *Group) hold(k *key, m *Message, now time.Time, fx *effects) {
	if m.Due.Sub(now) > holdEarly || g.neverFits(m) {
		g.giveBack(m, m.Due, now, "came back early", nil, fx)
		return
	}
	k.later.pushByDue(m)
	g.stashes(k, m)
	g.bound(now, fx)
}

// holdEarly is how early a message may come back and be held; the server restarts with delays cut to whole seconds.
const holdEarly = 2 * time.Second

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

// Free is how many more messages, of how many bytes in all, the group could use now, and whether it starts any. While the
// route waits that is what the stash has room for; see roomForProbes.
func (g *Group) Free() (room Room, flows bool) {
	var fx effects
	now := g.lock()
	defer g.unlock(&fx)
	if g.standsStill() {
		return Room{}, false
	}
	if g.route.state != Flowing {
		return g.roomForProbes(now), false
	}
	size := g.meter.window(now, g.opts.Concurrency)
	g.spill(now, &fx)
	g.lowWater = size / 2
	g.asked = true
	used := g.crowding()
	room = Room{max(0, size-used.messages-g.running.n), max(0, maxWindowBytes-used.bytes)}
	room.Messages = g.orderedRoom(room.Messages, now)
	return room, true
}

// roomForProbes is what the stash has room for while the route waits. When nothing is at hand that the next round could ask
// and that did not fail before, there is always some: what failed, or waits for its own key, makes room.
func (g *Group) roomForProbes(now time.Time) Room {
	most := 2 * g.opts.Concurrency
	if _, m := g.chooseRouteProbe(true, now); m == nil {
		return Room{min(max(1, g.opts.StashMessages/4), most), g.opts.StashBytes}
	}
	return Room{max(0, min(g.stashRoom(), most)), max(0, g.opts.StashBytes-g.stash.bytes)}
}

// crowding is what of the window keeps more messages from coming. Those that must run alone take turns with the others: as
// many as a window may hold do not count, or nothing would come that could run in the meantime.
func (g *Group) crowding() usage {
	return usage{g.window.messages - min(g.alones.messages, maxWindow), g.window.bytes - min(g.alones.bytes, maxWindowBytes)}
}

// Room is for what there is room.
type Room struct{ Messages, Bytes int }

// windowFull tells whether the window keeps more messages from coming, or soon will.
func (g *Group) windowFull(now time.Time) bool {
	used := g.crowding()
	return used.messages+g.running.n >= g.meter.window(now, g.opts.Concurrency) || used.bytes >= maxWindowBytes/2
}

// stashRoom is for how many more messages the stash has room, if they are as large as those in it.
func (g *Group) stashRoom() int {
	n := g.opts.StashMessages - g.stash.messages
	if g.stash.bytes > 0 {
		mean := max(1, g.stash.bytes/g.stash.messages)
		n = min(n, (g.opts.StashBytes-g.stash.bytes)/mean)
	}
	return n
}

// tellMore asks for more messages once half of what Free told last has been used.
func (g *Group) tellMore(fx *effects) {
	if g.asked && g.crowding().messages+g.running.n <= g.lowWater {
		g.asked = false
		fx.calls = append(fx.calls, g.opts.More)
	}
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
	// maxWindowBytes is some hundred messages of 64 KiB. More would cost memory, and nothing is faster for it.
	maxWindowBytes = 16 << 20
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
	several         bool // there were ever two
}

func (r *recentKeys) saw(key string, now time.Time) {
	if r.last != key {
		r.several = r.several || !r.lastAt.IsZero()
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
