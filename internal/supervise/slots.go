package supervise

import "time"

// slots are the places in which handlers run and factories make children, and the keys that wait for one. Keys take turns,
// and so do first deliveries and messages that were here before.
type slots struct {
	*moment
	ramp
	all     int
	running list[run] // in the order of their deadlines, which is that in which they began unless the timeout changed
	overdue list[run] // past their deadline, with a little time left to return
	births  []*birth  // children that are being made, by their deadlines
	stuck   int       // given up, and their goroutines have not returned; they have no slot

	ready   [2]queue // keys with something to start, by line
	turn    line     // whose turn it is
	favours int      // how many keys in a row came before their turn
	crowded queue    // keys that have slots and may not have one of the last
	alone   queue    // keys whose next message must run alone
	retries retries
	hangs   hangs
	recent  recentKeys

	waking  bool // a goroutine was started that has not taken a message yet
	pace    pace
	terms   terms
	spilled time.Time // when stalled keys were looked for
	jammed  bool      // some of them had failed or hung before, and had messages in the window
}

// line is where the messages of a key that may start are queued.
type line uint8

const (
	fresh    line = iota // those that are here for the first time
	returned             // all others
)

func (l line) other() line { return 1 - l }

func newSlots(n int, timeout time.Duration, of *moment) slots {
	s := slots{moment: of, all: n}
	s.terms.change(timeout)
	s.ready[fresh].mark, s.ready[returned].mark = markFresh, markReturned
	s.crowded.mark, s.alone.mark, s.retries.keys.mark, s.hangs.keys.mark = markCrowded, markAlone, markRetry, markHung
	return s
}

// queue gives k turns if it has something to start.
func (s *slots) queue(k *key) {
	if s.closed || k.waitsForLimit() { // whoever gives a place back does it
		return
	}
	if s.opts.Ordered {
		if m := k.first(); m != nil && k.held.n == 0 && m.isNew() {
			s.ready[fresh].push(k)
		} else if m != nil {
			s.ready[returned].push(k)
		}
		return
	}
	if k.fresh.n > 0 || k.newHeld() != nil {
		s.ready[fresh].push(k)
	}
	if k.returned.n > 0 || k.held.n > 0 || k.is(Probing) && k.later.n > 0 {
		s.ready[returned].push(k)
	}
}

// pop is the next key of the route that is ready, and the line that it has to be taken from; nil when there is none.
func (s *slots) pop(of *route) (*key, line) {
	if i := s.favoured(of); i >= 0 {
		s.favours++
		return s.ready[fresh].takeAt(i), fresh
	}
	s.favours = 0
	from := s.nextLine()
	q := &s.ready[from]
	switch {
	case q.len() == 0:
		return nil, from
	case from == fresh && of.newestNext():
		return q.takeAt(nearEnd(q.waiting(), func(k *key) bool { return !k.hung && k.trouble.failures == 0 })), from
	}
	return q.pop(), from
}

// favoured is the place of a key that comes before its turn, among those with something new; below zero: there is none. It is one whose last message
// succeeded while half of the others fail: such a message gives its slot back soon, and others may not. It is not more often before others than there are slots.
func (s *slots) favoured(of *route) int {
	q := &s.ready[fresh]
	if q.len() == 0 || s.favours >= s.all || of.evidence.failed == 0 || !of.evidence.half() {
		return -1
	}
	i := nearEnd(q.waiting(), func(k *key) bool { return k.worked })
	if !q.waiting()[i].worked {
		return -1
	}
	return i
}

// nearEnd is the place of the last key of which yes is true, as far as that is near the end; else that of the last one.
func nearEnd(keys []*key, yes func(*key) bool) int {
	last := len(keys) - 1
	for i := last; i >= max(0, last-nearTheEnd); i-- {
		if yes(keys[i]) {
			return i
		}
	}
	return last
}

// nearTheEnd is how many keys are looked at.
const nearTheEnd = 32

// nextLine is the line whose turn it is, or the other one when nothing is ready in it.
func (s *slots) nextLine() line {
	if s.ready[s.turn].len() == 0 {
		return s.turn.other()
	}
	return s.turn
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
func (r *recentKeys) others(key string, now time.Time) bool {
	at := r.lastAt
	if r.last == key {
		at = r.otherAt
	}
	return now.Sub(at) < sharesWithin
}

// sharesWithin is how long a key remembers that it is not alone on the route.
const sharesWithin = 10 * time.Second

// busy counts the slots in use.
func (s *slots) busy() int { return s.running.n + s.overdue.n + len(s.births) }

// open is how many slots there are now: fewer than Concurrency while the route recovers.
func (s *slots) open() int { return s.of(s.all) }

// limit is how many slots k may hold now.
func (s *slots) limit(k *key) int {
	k.trouble.lapse(s.now, s.cfg.Window)
	if s.opts.Ordered {
		return 1
	}
	// Runs of earlier children were cancelled. Whether they heed it must not keep the fresh one from its probe.
	one := k.stale + 1
	if k.trouble.failures > 0 || k.is(Probing) {
		return one
	}
	n := s.all
	switch {
	case s.recent.others(k.name, s.now):
		n /= 2
	case s.recent.several:
		// It is alone now, but one slot stays free: its handlers might hang just when another key has a message.
		n--
	}
	if ramp := k.flow.ramp; ramp > 0 && k.flows() {
		n = min(n, k.stale+ramp)
	}
	return max(n, one)
}

// lastSlots is how many slots are left to keys that hold none: one of each 64. Without them two keys whose handlers hang,
// half of the slots each, would have them all. More would cost the few busy keys of a healthy route too much.
func (s *slots) lastSlots() int { return max(1, s.open()/64) }

// mayCrowd tells whether k, which may hold more slots by itself, would take one of the last.
func (s *slots) mayCrowd(k *key) bool {
	return k.runs > 0 && s.open()-s.busy() <= s.lastSlots() && k.flows() && s.recent.others(k.name, s.now)
}

// roomForCrowded tells whether a key that was kept from the last slots may try again: others were freed.
func (s *slots) roomForCrowded() bool {
	return s.crowded.len() > 0 && s.open()-s.busy() > s.lastSlots()
}

// full tells whether k holds as many slots as it may now.
func (s *slots) full(k *key) bool {
	return k.runs >= s.limit(k) || s.mayCrowd(k)
}

// startAll starts what may start, and lends the rest to the fallback. While the route flows it wakes one goroutine, which takes a message and wakes the next
// one before it runs: handlers that return at once keep few goroutines busy, and those that block get one each. While
// handlers are quick, one goroutine is enough; see pace.
func (t *turn) startAll() {
	t.slots.startMain(t)
	t.fallback.lend(t)
	t.aside.recall(t)
}

// startMain starts what the main handler may have.
func (s *slots) startMain(t *turn) {
	if !t.route.flows() {
		for r := t.next(); r != nil; r = t.next() {
			t.group.goes.Add(1)
			go t.group.work(r)
		}
		return
	}
	if s.waking || s.ready[fresh].len()+s.ready[returned].len() == 0 && !s.roomForCrowded() || s.busy() >= s.open() || t.standsStill() {
		return
	}
	if s.running.n > 0 && s.pace.quick() {
		if s.pace.watch(t.counts.Started) {
			t.alarm.arm(t.now.Add(patience))
		}
		return
	}
	s.waking = true
	t.group.goes.Add(1)
	go t.group.awake()
}

// awake takes the first message of a goroutine.
func (g *Group) awake() {
	t := g.lock()
	t.slots.waking = false
	r := t.next()
	if r != nil {
		t.startAll()
	}
	t.unlock()
	if r == nil {
		g.leave()
		return
	}
	g.work(r)
}

// next takes the message that is to start now, and a slot for it; nil when there is none.
func (t *turn) next() *run {
	if t.standsStill() {
		return nil
	}
	return t.route.state.next(t)
}

// next is next while the route flows.
func (s *slots) next(t *turn) *run {
	for s.busy() < s.open() {
		if s.roomForCrowded() {
			t.makeReady(s.crowded.pop())
		}
		k, from := s.pop(&t.route)
		if k == nil {
			return nil
		}
		m := s.choose(t, k, from)
		if m != nil && s.apart(k, m) {
			continue
		}
		if m != nil && k.asks(t, m) {
			continue
		}
		if m != nil && t.limits.takes(k, m) != nil {
			continue
		}
		if m != nil {
			s.turn = from.other()
			r := s.start(t, k, m)
			t.makeReady(k)
			return r
		}
		// k is queued again when what keeps it from starting changes. If it was its turn for a child, it is another's now.
		if t.nursery.childless.len() > 0 && t.nursery.room() {
			t.nursery.adopt(t)
		}
	}
	return nil
}

// choose picks the message of k that starts now, if one may.
func (s *slots) choose(t *turn, k *key, from line) *Message {
	if k.gone || k.runs >= s.limit(k) {
		return nil
	}
	if s.mayCrowd(k) {
		s.crowded.push(k) // the end of a run of another key lets it go on, too
		return nil
	}
	m := k.state.choose(t, k, from)
	switch {
	case m == nil:
		t.nursery.mayRetire(t, k)
	case m.judged() && s.enoughRetries():
		s.retries.keys.push(k)
		k.leaveWindow(t)
		return nil
	case k.hung && s.enoughHangs():
		s.hangs.keys.push(k)
		k.leaveWindow(t)
		return nil
	case k.child == nil:
		if t.nursery.make(t, k); k.child == nil {
			return nil // it is being made
		}
	}
	return m
}

// start takes m out of where it waits and gives it a slot.
func (s *slots) start(t *turn, k *key, m *Message) *run {
	t.take(k, m)
	r := s.begin(k, m)
	t.nursery.holdChild(r.child, k)
	return r
}

// begin gives a message of k a slot.
func (s *slots) begin(k *key, m *Message) *run {
	r := m.newRun()
	r.k, r.m, r.child, r.number, r.deadline = k, m, k.child, int32(m.Attempts+1), s.now.Add(s.opts.Timeout)
	r.term = s.terms.begin()
	r.child.of.runs++
	r.epoch, r.past = s.epoch, m.past()
	k.state.started(k, r)
	if r.past == failedBefore {
		s.retries.runs++
	}
	if r.again = k.hung; r.again {
		s.hangs.runs++
	}
	k.runs++
	if s.group.preparer(m) != nil {
		r.deadline = r.deadline.Add(preparing)
	}
	s.running.pushBehind(&r.place, r, func(other *run) bool { return other.deadline.After(r.deadline) })
	s.alarm.arm(r.deadline)
	s.counts.Started++
	return r
}

// end gives the slot of r back.
func (s *slots) end(r *run) {
	r.place.in.remove(&r.place)
	s.ended(r.epoch)
	if r.past == failedBefore {
		s.retries.runs--
		s.releaseRetries()
	}
	s.endHang(r)
	k := r.k
	k.runs--
	if r.late = r.child != k.child; r.late {
		k.stale--
	}
	k.probeEnded(r)
	k.lastDone = s.now
	s.pace.ran(s.now.Sub(s.began(r)))
	s.terms.end(r.term)
}
