package supervise

import (
	"math/rand/v2"
	"time"

	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/teeth"
)

// aside has the messages that were given back because they cannot start now. They must not delay messages that can. When a message waits for its route, its
// key or a limit, and the stash has no room, the group gives it back to its stream with a delay and remembers it. When the wait is over, the group calls the
// message back. The delay only says when the message comes by itself if it is never called.
//
//	stash ── no room ──▶ aside ── call ▶ called ── Deliver ─▶ it is here again
//	                       └── its delay is over, or the group remembers too many ──▶ Deliver
//
// What a message waits for decides when it is called back:
//
//	its route   while the route asks, as fast as it asks; all of them when the route flows
//	its key     when the key flows, or needs a message to probe with
//	a limit     as the line of the limit's bucket gets shorter (limited_aside.go)
//
// No more messages are called at once than would soon start: those that are called come before those that are new.
type aside struct {
	*moment
	all    map[asideID]*absentee
	fresh  shelf             // messages that wait for the route and never failed
	judged shelf             // messages that wait for the route and failed before
	keys   map[string]*shelf // messages that wait for their key
	// buckets are those of messages that wait for a limit, by the name of the bucket.
	buckets map[string]*shelf
	open    []*shelf // those of keys from which messages may be called
	openAt  []*shelf // those of buckets
	called  list[absentee]
	bytes   int       // of those that are called
	turn    bool      // the newest is called next
	swept   time.Time // when those were last forgotten whose time is over
}

// asideID tells the messages of a group apart.
type asideID struct {
	replayed bool
	sequence uint64
}

// absentee is a message that is aside.
type absentee struct {
	id    asideID
	key   string
	size  int
	due   time.Time // its own delay is over
	back  time.Time // it comes by itself
	until time.Time // called: it is not waited for any more
	away  Away
	place node[absentee]
	on    *shelf
}

// shelf is what waits for the same thing.
type shelf struct {
	list[absentee]
	key    string        // empty: its messages do not wait for a key
	name   string        // of the bucket; empty: its messages do not wait for a limit
	bucket *limit.Bucket // the one of that name
	called int
	opened bool // it is in aside.open
}

const (
	// maxAside is how many messages may be aside before a route that waits asks for no more than it needs. A group keeps twice as many
	// in mind.
	maxAside = 30_000
	// asideFor is how long a message stays aside that is not called back, plus or minus half of it at random. The time doubles each time
	// that the message came by itself and could not start, up to asideMost. It is only as long as needed for at most asideRate messages a
	// second to come by themselves. After a crash nobody remembers what to call back.
	asideFor  = 30 * time.Second
	asideMost = 8 * time.Minute
	asideRate = 100
	// calledWithin is how long a message that was called may take to come.
	calledWithin = 1500 * time.Millisecond
	// notWorthIt is how soon a message must come by itself that is not called back.
	notWorthIt = 3 * time.Second
)

// put gives back a message that cannot start now, and keeps it in mind.
func (a *aside) put(t *turn, k *key, m *Message, due time.Time, why string, err error) {
	s := &a.fresh
	switch {
	case !k.flows() || t.route.flows() && !t.paused:
		s = nil // of its key
	case m.judged():
		s = &a.judged
	}
	a.putOn(t, s, k, m, due, why, err)
}

// putOn is put on a shelf; nil is that of the key.
func (a *aside) putOn(t *turn, s *shelf, k *key, m *Message, due time.Time, why string, err error) {
	keep := a.keep(s, k, m, due)
	t.giveBack(m, due, why, err)
	if keep {
		t.last().Aside, t.last().Own = true, m.Due
	}
}

// until is when a message comes by itself that goes aside. Wait is when its key and its route have waited, if that is known.
func (a *aside) until(m *Message, wait time.Time) time.Time {
	d := min(asideFor<<max(0, min(m.Returns, 8)), asideMostOf(len(a.all)))
	if a.opts.Ordered {
		d = max(d, overflowMin) // later messages of its key wait for it, and have it called back
	}
	d = max(d, wait.Sub(a.now))
	return a.now.Add(time.Duration(float64(d) * (0.5 + rand.Float64())))
}

// asideMostOf is the longest time that one of n messages is to stay aside.
func asideMostOf(n int) time.Duration {
	return min(max(asideFor, time.Duration(n)*time.Second/asideRate), asideMost)
}

// keep notes that m goes away until then; false means that it is not called back.
func (a *aside) keep(s *shelf, k *key, m *Message, until time.Time) bool {
	if a.closing || a.opts.near || until.Sub(a.now) < notWorthIt || a.opts.Ordered && k.is(Waiting) {
		return false // of an ordered key that waits: see callBack
	}
	if len(a.all) >= 2*maxAside {
		if a.now.Sub(a.swept) < asideFor {
			return false
		}
		if a.sweep(a.now); len(a.all) >= 2*maxAside {
			return false
		}
	}
	e := &absentee{id: asideID{m.Replayed, m.Sequence}, key: m.Key, size: m.Size, due: m.Due, back: until, away: m.Work.Away()}
	a.back(e.id)
	if e.on = s; s == nil {
		e.on = a.shelfOf(m.Key)
	}
	if m.Returns > 0 {
		e.on.insert(&e.place, e, nil) // it was here before, and the last one is to be the newest
	} else {
		e.on.push(&e.place, e)
	}
	if a.all == nil {
		a.all = make(map[asideID]*absentee)
	}
	a.all[e.id] = e
	return true
}

func (a *aside) shelfOf(key string) *shelf {
	s := a.keys[key]
	if s == nil {
		if a.keys == nil {
			a.keys = make(map[string]*shelf)
		}
		s = &shelf{key: key}
		a.keys[key] = s
	}
	return s
}

// back forgets a message: it is here again, or it is known not to come. It tells whether it was called.
func (a *aside) back(id asideID) (called bool) {
	if len(a.all) == 0 {
		return false
	}
	e := a.all[id]
	if e == nil {
		return false
	}
	called = e.place.in == &a.called
	a.drop(e)
	return called
}

func (a *aside) drop(e *absentee) {
	delete(a.all, e.id)
	if e.place.in == &a.called {
		a.bytes -= e.size
		e.on.called--
	}
	e.place.in.remove(&e.place)
	switch s := e.on; {
	case s.n > 0 && s.name != "":
		a.offer(s)
	case s.n+s.called > 0:
	case s.name != "":
		delete(a.buckets, s.name)
	case s.key != "":
		delete(a.keys, s.key)
	}
}

// sweep forgets those whose time is over: they have come, here or elsewhere.
func (a *aside) sweep(now time.Time) {
	a.swept = now
	for _, e := range a.all {
		if e.back.Before(now) {
			a.drop(e)
		}
	}
}

// expire stops waiting for those that were called and have not come.
func (a *aside) expire(now time.Time) {
	for e := a.called.first(); e != nil && !now.Before(e.until); e = a.called.first() {
		a.drop(e)
	}
}

// waitsForRoute tells whether the message of this sequence waits for its route alone.
func (a *aside) waitsForRoute(sequence uint64) bool {
	for _, replayed := range []bool{false, true} {
		if e := a.all[asideID{replayed, sequence}]; e != nil && (e.on == &a.fresh || e.on == &a.judged) {
			return true
		}
	}
	return false
}

// offerShelf lets messages of k be called back, if some are aside.
func (a *aside) offerShelf(name string) {
	if s := a.keys[name]; s != nil {
		a.offer(s)
	}
}

// recall calls back what may start soon.
func (a *aside) recall(t *turn) {
	if len(a.all) == 0 && t.order.owed.n == 0 || t.standsStill() || teeth.Call() {
		return
	}
	a.expire(t.now)
	if t.route.flows() {
		a.recallAll(t)
	} else {
		a.recallToAsk(t)
	}
	if e := a.called.first(); e != nil {
		t.alarm.arm(e.until)
		if ripe := a.called.last().ripe(); t.now.Before(ripe) {
			t.alarm.arm(ripe)
		}
		if !t.route.flows() && !t.now.Before(e.ripe()) {
			t.call(t.opts.More)
		}
	}
}

// ripe is when a message that was called is ready to come. What is asked for before that is other messages.
func (e *absentee) ripe() time.Time { return e.until.Add(calledFor - calledWithin) }

// ripe is how many messages that were called are ready to come.
func (a *aside) ripe() (n int) {
	for e := range a.called.all() {
		if a.now.Before(e.ripe()) {
			break
		}
		n++
	}
	return n
}

// recallAll is recall while the route flows.
func (a *aside) recallAll(t *turn) {
	most := t.window.meter.window(t.now, t.opts.Concurrency)
	a.recallOpen(t, &a.openAt, func() bool { return a.called.n < most && a.bytes < MaxWindowBytes }) // whatever else waits
	a.recallOpen(t, &a.open, func() bool { return a.mayCall(t, most) })
	for a.fresh.n > 0 && a.fresh.called+t.window.back < most && a.bytes < MaxWindowBytes { // whatever else is called, or waits
		e := a.fresh.first()
		if a.turn = !a.turn; a.turn { // the newest and the oldest in turn
			e = a.fresh.last()
		}
		a.recallOne(t, &a.fresh, e)
	}
	for a.judged.n > 0 && a.mayCall(t, most) {
		a.recallOne(t, &a.judged, a.judged.first())
	}
	for t.order.owed.n > 0 && a.mayCall(t, most) {
		t.order.callBack(t, t.order.owed.first())
	}
}

// recallOpen calls messages of some shelves back.
func (a *aside) recallOpen(t *turn, open *[]*shelf, may func() bool) {
	for len(*open) > 0 && may() {
		s := (*open)[0]
		*open = (*open)[1:]
		s.opened = false
		for n := 0; n < maxCalled && s.n > 0 && may() && a.wantsMore(t, s); n++ {
			a.recallOne(t, s, s.first())
		}
		if s.n > 0 && a.wantsMore(t, s) {
			a.offer(s)
		}
	}
}

// mayCall tells whether so few messages that were here before are on their way, or wait for a slot, that one more may be called.
func (a *aside) mayCall(t *turn, most int) bool {
	s := &t.slots
	waiting := s.ready[returned].len() + s.retries.keys.len() + s.hangs.keys.len()
	others := max(a.called.n, t.order.called) - a.fresh.called
	return others+waiting < most && a.bytes < MaxWindowBytes
}

// wantsMore tells whether so little of a key, or for a bucket, is at hand that more should come.
func (a *aside) wantsMore(t *turn, s *shelf) bool {
	if s.name != "" {
		return t.limits.wantsAt(t, s)
	}
	k := t.keys[s.key]
	switch {
	case k == nil:
		return s.called < maxCalled
	case k.flows():
		return k.messages()+s.called < max(maxCalled, 2*t.slots.limit(k))
	}
	probing, ok := k.state.(*probing)
	return ok && probing.wants(t) && k.messages()+s.called == 0
}

// recallToAsk is recall while the route asks: it calls as many as are asked until they are here.
func (a *aside) recallToAsk(t *turn) {
	q := &t.route.inquiry
	if t.route.is() != Probing {
		return
	}
	ahead := q.ahead(t)
	if e := a.fresh.last(); e != nil && q.newest && q.oneByOne(t) && a.fresh.called == 0 && !q.hasNewer(t, e.id.sequence) {
		a.recallOne(t, &a.fresh, e) // however many older ones are at hand
	}
	called := a.judged.called + max(a.fresh.called, t.order.called)
	for have := q.good.n + q.fresh.n + q.back.n + called; have < ahead && a.fresh.n > 0; have++ {
		e := a.fresh.first()
		if q.newest != (have%2 == 1) { // where one is asked at a time have is 0
			e = a.fresh.last()
		}
		a.recallOne(t, &a.fresh, e)
	}
	if q.good.n+q.fresh.n+q.back.n+q.second.n+q.judged.n+a.fresh.n+called+t.route.probes > 0 {
		return
	}
	switch {
	case a.judged.n > 0:
		a.recallOne(t, &a.judged, a.judged.first())
		return
	case t.order.owed.n > 0:
		k := t.order.owed.first()
		k.inOwed.moveTo(nil, k)
		t.order.callHead(k, nil)
		return
	}
	for len(a.open) > 0 {
		s := a.open[0]
		a.open, s.opened = a.open[1:], false
		if s.n > 0 && a.wantsMore(t, s) {
			a.recallOne(t, s, s.first())
			return
		}
	}
}

// recallOne calls e back. Of an ordered key it is the first message that is called.
func (a *aside) recallOne(t *turn, s *shelf, e *absentee) {
	if t.opts.Ordered {
		a.drop(e)
		if k := t.keys[e.key]; k != nil {
			t.order.callHead(k, &s.called)
		}
		return
	}
	if e.back.Sub(later(t.now, e.due)) < notWorthIt {
		a.drop(e) // it comes by itself
		return
	}
	due, away := e.due, e.away
	t.call(func() { away.CallBack(due) })
	if e.due.After(t.now) {
		a.drop(e) // it comes when its own delay is over
		return
	}
	s.remove(&e.place)
	a.called.push(&e.place, e)
	e.until = t.now.Add(calledWithin)
	s.called++
	a.bytes += e.size
}

// Gone says that a message that was given back will not be redelivered under its sequence, so that calling it back has
// no effect.
func (g *Group) Gone(m *Message) {
	t := g.lock()
	t.aside.back(asideID{m.Replayed, m.Sequence})
	t.unlock()
}

// CallBackAll calls back all messages that the group put aside, so that the next group gets them. It is for a group
// that is drained.
func (g *Group) CallBackAll() {
	t := g.lock()
	for _, e := range t.aside.all {
		due, away := e.due, e.away
		t.call(func() { away.CallBack(due) })
	}
	t.aside = aside{moment: &t.moment}
	t.unlock()
}
