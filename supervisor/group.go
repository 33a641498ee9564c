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
	opts    Options        // not changed any more
	goes    sync.WaitGroup // its goroutines
	quiet   chan struct{}  // closed when the group is closing and nothing runs any more
	mu      sync.Mutex
	guarded guarded
}

// guarded is what a group's lock guards; see turn.
type guarded struct {
	group *Group
	opts  *Options
	cfg   *Config

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
	ended      bool // closed: the timer stays off
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
	g := &Group{opts: opts, quiet: make(chan struct{})}
	t := g.lock()
	*t.guarded = guarded{group: g, opts: &g.opts, cfg: &g.opts.Config, keys: make(map[string]*key)}
	t.stashed.id, t.idle.id, t.alive.id, t.failingKeys.id = 0, 1, 2, 3
	t.route.evidence = newEvidence(opts.Config)
	if opts.New == nil {
		t.shared = &child{value: opts.Shared, number: 1, shared: true, started: t.now}
	}
	t.timer = time.AfterFunc(time.Hour, g.tick)
	t.timer.Stop()
	t.unlock()
	return g
}

// Deliver takes messages in. Each will be settled once: when it was handled, when it has to wait elsewhere, or at the end.
func (g *Group) Deliver(messages ...*Message) {
	t := g.lock()
	for _, m := range messages {
		t.deliver(m)
	}
	t.spill()
	t.startAll()
	t.unlock()
}

func (t *turn) deliver(m *Message) {
	m.arrived = t.now
	switch {
	case t.closing:
		t.giveBack(m, time.Time{}, "shutting down", nil)
		return
	}
	k := t.keys[m.Key]
	if k == nil {
		k = t.newKey(m.Key)
	}
	k.outside.back(m.Sequence)
	t.admit(k, m)
	t.attend(k)
}

// admit finds the place of a message that arrived.
func (t *turn) admit(k *key, m *Message) {
	switch {
	case t.spent(m):
		t.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExhausted})
		return
	case t.expired(m):
		t.settle(m, Outcome{Action: DeadLetter, Reason: ReasonExpired})
		return
	}
	if t.paused {
		t.turnAwayPaused(m)
		return
	}
	t.recent.saw(m.Key, t.now)
	if !m.judged() && k.state == Flowing {
		t.hurryRoute()
	}
	early := m.Due.After(t.now) && !t.opts.Ordered
	switch {
	case k.state == Suspended:
		t.refuse(k, m)
		return
	case !early && t.waits(k) && t.cfg.Forward != ForwardStash && !t.isProbe(k, m):
		t.turnAway(k, m)
		return
	}
	t.touch(k) // not for a message that goes away: it would keep an idle child in the place of one that is needed
	switch {
	case early:
		t.hold(k, m)
	case t.waits(k), t.opts.Ordered && (k.stash.n > 0 || t.blocked(k, m)):
		t.putStash(k, m)
		t.bound()
	default:
		t.putWindow(k, m)
	}
}

// waits tells whether a message of k that arrives now has to wait for its key or its route. An operator's pause is no
// such wait: nothing failed, and forward does not apply to it.
func (t *turn) waits(k *key) bool { return k.state != Flowing || t.route.state != Flowing }

// isProbe tells whether a message that arrives now is what k, the route, or both wait for to probe with. Without it, no
// probe would ever be found where forward keeps no stash.
func (t *turn) isProbe(k *key, m *Message) bool {
	if t.opts.Ordered && t.blocked(k, m) {
		return false // it could not start, and would keep out the one that can
	}
	switch k.state {
	case Flowing:
	case Probing:
		if k.probe != nil || k.messages() > 0 && !(t.opts.Ordered && m.Sequence < k.stash.first.Sequence) || !*t.cfg.ForwardDuringGrace && t.now.Before(k.until) {
			return false
		}
	default:
		return false
	}
	if t.route.state == Flowing {
		return true
	}
	if t.route.state != Probing || !t.route.round.wants(!m.judged(), t.now) {
		return false
	}
	of, other := t.chooseRouteProbe(!m.judged())
	return other == nil || t.opts.Ordered && of == k && m.Sequence < other.Sequence // other would have to wait for m
}

func (t *turn) spent(m *Message) bool {
	return t.opts.MaxAttempts > 0 && m.Attempts >= t.opts.MaxAttempts
}

func (t *turn) expired(m *Message) bool {
	return t.opts.MaxAge > 0 && !m.FirstFailure.IsZero() && t.now.Sub(m.FirstFailure) > t.opts.MaxAge
}

// hold keeps a message that came back before its own delay was over, or gives it back for what is left.
func (t *turn) hold(k *key, m *Message) {
	if m.Due.Sub(t.now) > holdEarly || t.neverFits(m) {
		t.giveBack(m, m.Due, "came back early", nil)
		return
	}
	k.later.pushByDue(m)
	t.stashes(k, m)
	t.bound()
}

// holdEarly is how early a message may come back and be held; the server restarts with delays cut to whole seconds.
const holdEarly = 2 * time.Second

// waitOf is when the key's and the route's wait are both over.
func (t *turn) waitOf(k *key) time.Time {
	var until time.Time
	if k.state == Waiting || k.state == Probing {
		until = k.until
	}
	if t.route.state != Flowing {
		until = later(until, t.route.until)
	}
	return until
}

// Free is how many more messages, of how many bytes in all, the group could use now, and whether it starts any. While the
// route waits that is what the stash has room for; see roomForProbes.
func (g *Group) Free() (room Room, flows bool) {
	t := g.lock()
	defer t.unlock()
	if t.standsStill() {
		return Room{}, false
	}
	if t.route.state != Flowing {
		return t.roomForProbes(), false
	}
	size := t.meter.window(t.now, t.opts.Concurrency)
	t.spill()
	t.lowWater = size / 2
	t.asked = true
	used := t.crowding()
	room = Room{max(0, size-used.messages-t.running.n), max(0, maxWindowBytes-used.bytes)}
	room.Messages = t.orderedRoom(room.Messages)
	return room, true
}

// roomForProbes is what the stash has room for while the route waits. When nothing is at hand that the next round could ask
// and that did not fail before, there is always some: what failed, or waits for its own key, makes room.
func (t *turn) roomForProbes() Room {
	most := 2 * t.opts.Concurrency
	if _, m := t.chooseRouteProbe(true); m == nil {
		return Room{min(max(1, t.opts.StashMessages/4), most), t.opts.StashBytes}
	}
	return Room{max(0, min(t.stashRoom(), most)), max(0, t.opts.StashBytes-t.stash.bytes)}
}

// crowding is what of the window keeps more messages from coming. Those that must run alone take turns with the others: as
// many as a window may hold do not count, or nothing would come that could run in the meantime.
func (t *turn) crowding() usage {
	return usage{t.window.messages - min(t.alones.messages, maxWindow), t.window.bytes - min(t.alones.bytes, maxWindowBytes)}
}

// Room is for what there is room.
type Room struct{ Messages, Bytes int }

// windowFull tells whether the window keeps more messages from coming, or soon will.
func (t *turn) windowFull() bool {
	used := t.crowding()
	return used.messages+t.running.n >= t.meter.window(t.now, t.opts.Concurrency) || used.bytes >= maxWindowBytes/2
}

// stashRoom is for how many more messages the stash has room, if they are as large as those in it.
func (t *turn) stashRoom() int {
	n := t.opts.StashMessages - t.stash.messages
	if t.stash.bytes > 0 {
		mean := max(1, t.stash.bytes/t.stash.messages)
		n = min(n, (t.opts.StashBytes-t.stash.bytes)/mean)
	}
	return n
}

// tellMore asks for more messages once half of what Free told last has been used.
func (t *turn) tellMore() {
	if t.asked && t.crowding().messages+t.running.n <= t.lowWater {
		t.asked = false
		t.call(t.opts.More)
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
