package supervisor

import (
	"fmt"
	"math"
	"time"
)

// key is the supervisor of what belongs together. It exists while it has messages, runs, a child of its own, or failures
// to remember.
type key struct {
	name  string
	state State

	fresh, due list // in the window: first deliveries, and redeliveries
	stash      list // in the stash and ready to start, oldest first
	later      list // in the stash, by when their own delay is over
	runs       int  // of this key, hung ones not counted
	stale      int  // of these, runs of earlier children
	lastDone   time.Time

	child     *child
	birth     *birth // a child is being made
	orphan    bool   // waits for another key's child to end
	children  int    // made so far
	probe     *run
	until     time.Time // waiting: when it is over; probing: when the grace is
	since     time.Time // of the state
	outage    outage
	lastErr   error
	failures  int // in a row
	firstFail uint64
	several   bool // the failures are of more than one message
	outside   outside
	failedAt  time.Time // the last failure, stop or trip
	tripped   bool      // waits because of failures of several messages: a probe's error spends no attempt
	restarts  int
	stops     []time.Time // within the window, for max_restarts
	ramp      int         // how many may run at once after a wait; 0: no ramp
	gaveUp    bool        // suspended by on_give_up: dead_letter
	oldNext   bool        // the next probe is a message that failed before
	failing   int         // messages in the stash that failed before
	retry     bool        // in the group's queue of keys whose retries wait for those of others

	queued     [2]bool // in the group's queues of ready keys
	alone      bool    // in the group's queue of keys whose next message must run alone
	crowded    bool    // in the group's queue of keys that may not have the last slots
	wake       time.Time
	wakeIndex  int // in the heap; -1: not
	lastActive time.Time
	lists      [4]keyLinks
}

func (t *turn) newKey(name string) *key {
	k, _ := t.unused.Get().(*key)
	if k == nil {
		k = new(key)
	}
	*k = key{name: name, wakeIndex: -1}
	if t.shared != nil {
		k.child, k.children = t.shared, 1
	}
	t.keys[name] = k
	return k
}

// touch notes that k is active.
func (t *turn) touch(k *key) {
	k.lastActive = t.now
	if t.stashed.has(k) {
		t.stashed.remove(k)
		t.stashed.push(k)
	}
	t.idle.remove(k)
}

// move is the only way from one state to another.
func (t *turn) move(k *key, to State, why string, delay time.Duration) {
	if !mayMove(k.state, to) {
		panic(fmt.Sprintf("supervisor: key %q: no move from %v to %v", k.name, k.state, to))
	}
	t.tell(Event{
		Key: k.name, From: k.state, To: to, Why: why, Delay: delay, Restarts: k.restarts, Child: k.childName(), Err: k.lastErr,
	})
	k.outage.moved(k.state, to, why, t.now)
	k.state, k.since = to, t.now
}

func (k *key) childName() string { return fmt.Sprintf("child-%d", max(1, k.children)) }

// putWindow queues a message that may start at once.
func (t *turn) putWindow(k *key, m *Message) {
	switch {
	case t.opts.Ordered:
		k.fresh.pushBySequence(m)
	case m.Attempts > 0 || m.Returns > 0:
		k.due.push(m)
	default:
		k.fresh.push(m)
	}
	t.window.add(m, 1)
	if m.Alone {
		t.alones.add(m, 1)
	}
}

func (k *key) messages() int { return k.fresh.n + k.due.n + k.stash.n + k.later.n }

// makeReady queues k for a slot if it has something to start.
func (t *turn) makeReady(k *key) {
	if t.route.state != Flowing {
		return // routeFlows does it
	}
	if k.fresh.n > 0 && !k.queued[0] {
		k.queued[0] = true
		t.ready[0].push(k)
	}
	if (k.due.n > 0 || k.stash.n > 0 || k.state == Probing && k.later.n > 0) && !k.queued[1] {
		k.queued[1] = true
		t.ready[1].push(k)
	}
}

// settleKey forgets a key that has nothing left, or sees to it that it is forgotten in time.
func (t *turn) settleKey(k *key) {
	if k.messages() > 0 || k.runs > 0 || k.birth != nil || len(k.outside.absent) > 0 {
		return
	}
	if k.state == Suspended || k.state == Waiting {
		return // until it is resumed, or its wait is over
	}
	if k.failures > 0 && t.now.Sub(k.failedAt) >= t.cfg.Window {
		k.failures = 0
	}
	if k.child != nil && !k.child.shared {
		if idle := k.lastActive.Add(t.cfg.ChildIdle); t.now.Before(idle) {
			t.wakeAt(k, idle)
			return
		}
		t.retire(k)
	}
	if forget, at := t.forgettable(k); !forget {
		if !t.idle.has(k) {
			t.idle.push(k)
		}
		if !at.IsZero() {
			t.wakeAt(k, at)
		}
		if t.idle.n > remembered {
			t.forget(t.idle.first)
		}
		return
	}
	t.forget(k)
}

// forgettable tells whether nothing about an idle key matters any more, or from when on.
func (t *turn) forgettable(k *key) (bool, time.Time) {
	if k.failures == 0 && k.restarts == 0 && !k.tripped {
		return true, time.Time{}
	}
	// The longest pause that the policy knows, and the window, say how long a failure is of interest.
	at := later(k.failedAt, k.until).Add(max(t.cfg.Window, 2*min(t.cfg.Restart.Max, math.MaxInt64/2)))
	if k.restarts > 0 && t.cfg.Reset == ResetNever {
		return false, time.Time{}
	}
	return !t.now.Before(at), at
}

func (t *turn) forget(k *key) {
	if k.child != nil && !k.child.shared {
		t.retire(k)
	}
	t.idle.remove(k)
	t.stashed.remove(k)
	t.unwake(k)
	delete(t.keys, k.name)
	if k.unknown(t.shared) {
		t.unused.Put(k)
	}
}

// unknown tells whether nobody refers to k any more, so that its memory can serve another key: most keys come and go
// with a message that succeeds at once. One whose child stopped may have runs that were given up.
func (k *key) unknown(shared *child) bool {
	return k.child != nil && k.child == shared && k.children == 1 && k.runs == 0 && k.birth == nil &&
		!k.queued[0] && !k.queued[1] && !k.alone && !k.crowded && !k.retry && !k.orphan
}

// keyQueue is a first-in-first-out queue of keys.
type keyQueue struct {
	items []*key
	head  int
}

func (q *keyQueue) push(k *key) { q.items = append(q.items, k) }

func (q *keyQueue) len() int { return len(q.items) - q.head }

func (q *keyQueue) pop() *key {
	k := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 1024 && q.head*2 > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return k
}

// keyList is an intrusive list of keys; a key is in each list at most once.
type keyList struct {
	id          int // which of a key's links it uses
	first, last *key
	n           int
}

type keyLinks struct {
	prev, next *key
	in         bool
}

func (l *keyList) has(k *key) bool { return k.lists[l.id].in }

func (l *keyList) push(k *key) {
	k.lists[l.id] = keyLinks{prev: l.last, in: true}
	if l.last == nil {
		l.first = k
	} else {
		l.last.lists[l.id].next = k
	}
	l.last = k
	l.n++
}

func (l *keyList) remove(k *key) {
	links := k.lists[l.id]
	if !links.in {
		return
	}
	if links.prev == nil {
		l.first = links.next
	} else {
		links.prev.lists[l.id].next = links.next
	}
	if links.next == nil {
		l.last = links.prev
	} else {
		links.next.lists[l.id].prev = links.prev
	}
	k.lists[l.id] = keyLinks{}
	l.n--
}
