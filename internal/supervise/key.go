package supervise

import (
	"fmt"
	"math"
	"time"

	"github.com/relaymq/relay/supervisor"

	"github.com/relaymq/relay/internal/limit"
)

// key is the supervisor of what belongs together. It exists while it has messages, runs, a child of its own, or failures
// to remember.
type key struct {
	name   string
	state  keyState
	flow   flowing // its state while nothing is wrong, which so costs no memory of its own
	outage outage
	trouble

	// Its messages: in the window those that are here for the first time, and the others; in the stash those that only wait for
	// the key or the route, oldest first, and those whose own delay is not over, by when it is. The lines of an ordered key are
	// in the order of the stream, and it has no others than fresh and held.
	fresh, returned, held, later list[Message]
	failedHeld                   int // in the stash, of those that failed before
	guests                       int // messages of it in the stash beyond its bound
	outside                      outside

	runs       int       // hung ones not counted
	stale      int       // of these, runs of earlier children
	lent       int       // messages that the fallback has
	notLent    time.Time // until then the fallback has no more of them: they would come back
	lastDone   time.Time
	lastActive time.Time
	asked      past // of the last probe

	places   *limit.Places // that its messages need to start; nil: not known yet, or none
	turn     uint64        // since it last started: when it first found no room in a limit; 0: it did not
	child    *child
	birth    *birth // a child is being made
	children int    // made so far

	hung                                   bool // its last run got no answer in time
	worked                                 bool // its last run succeeded
	gone                                   bool // it is forgotten: its name may have a new one
	marks                                  mark // for the queues that it is in
	wakeAt                                 time.Time
	wakeIndex                              int // among those that want attention; -1: it wants none
	inStash, inFailed, inIdle, inLingering node[key]
	inAsked, inJudged                      node[key] // among those that a route in doubt may ask
	inOwed                                 node[key] // see order.owed
}

// trouble is what is remembered of a key's failures.
type trouble struct {
	lastErr  error
	failedAt time.Time // the last failure, stop or trip
	failures int       // in a row
	first    uint64    // the message of the first of them
	began    time.Time // when that was
	several  bool      // they are of more than one message
	tripped  bool      // the key waits because several messages failed: a probe's error spends no attempt
	restarts int
	stops    []time.Time // within the window, for max_restarts
	until    time.Time   // when the last wait was over
}

// failed counts a failure of a message.
func (f *trouble) failed(m *Message, err error, now time.Time, window time.Duration) {
	f.lapse(now, window)
	if f.failures == 0 {
		f.several, f.first, f.began = false, m.Sequence, now
	}
	f.failures++
	f.several = f.several || m.Sequence != f.first
	f.failedAt, f.lastErr = now, err
}

// lapse forgets failures that are too old.
func (f *trouble) lapse(now time.Time, window time.Duration) {
	if f.failures > 0 && now.Sub(f.failedAt) >= window {
		f.endRow()
	}
}

// endRow forgets the failures in a row.
func (f *trouble) endRow() { f.failures, f.several = 0, false }

// remembered bounds the keys without messages that are kept because they failed lately.
const remembered = 100_000

func (t *turn) newKey(name string) *key {
	k, _ := t.unused.Get().(*key)
	if k == nil {
		k = new(key)
	}
	*k = key{name: name, wakeIndex: -1}
	k.state = &k.flow
	if shared := t.nursery.shared; shared != nil {
		k.child, k.children = shared, 1
	}
	t.keys[name] = k
	return k
}

func (k *key) is(s State) bool { return k.state.is() == s }

func (k *key) flows() bool { return k.state == &k.flow }

func (k *key) childName() string { return fmt.Sprintf("child-%d", max(1, k.children)) }

// messages is how many wait here.
func (k *key) messages() int { return k.fresh.n + k.returned.n + k.held.n + k.later.n }

func (k *key) pushBySequence(line *list[Message], m *Message) {
	line.pushBehind(&m.place, m, func(other *Message) bool { return other.Sequence > m.Sequence })
}

func (k *key) pushLater(m *Message) {
	k.later.pushBehind(&m.place, m, func(other *Message) bool { return other.Due.After(m.Due) })
}

// touch notes that k is active.
func (k *key) touch(t *turn) {
	k.lastActive = t.now
	t.stash.touch(k)
	t.lingering.remove(&k.inLingering)
}

// finish forgets a key that has nothing left, or sees to it that it is forgotten in time.
func (k *key) finish(t *turn) {
	if k.messages() > 0 || k.runs > 0 || k.lent > 0 || k.birth != nil || len(k.outside.absent) > 0 {
		return
	}
	if k.is(Suspended) || k.is(Waiting) {
		return // until it is resumed, or its wait is over
	}
	k.lapse(t.now, t.cfg.Window)
	if k.child != nil && !k.child.shared {
		if idle := later(k.lastActive.Add(t.cfg.ChildIdle), k.firstTurn()); t.now.Before(idle) {
			t.alarm.wake(k, idle)
			return
		}
		t.nursery.retire(t, k)
	}
	if forget, at := k.forgettable(t.now, t.cfg); !forget {
		if !t.lingering.has(&k.inLingering) {
			t.lingering.push(&k.inLingering, k)
		}
		if !at.IsZero() {
			t.alarm.wake(k, at)
		}
		if t.lingering.n > remembered {
			t.lingering.first().forget(t)
		}
		return
	}
	k.forget(t)
}

// forgettable tells whether nothing about an idle key matters any more, or from when on.
func (k *key) forgettable(now time.Time, cfg *supervisor.Config) (bool, time.Time) {
	if k.failures == 0 && k.restarts == 0 && !k.tripped {
		return true, time.Time{}
	}
	// The longest pause that the policy knows, and the window, say how long a failure is of interest.
	at := later(k.failedAt, k.until).Add(max(cfg.Window, 2*min(cfg.Restart.Max, math.MaxInt64/2)))
	if k.restarts > 0 && cfg.Reset == supervisor.ResetNever {
		return false, time.Time{}
	}
	return !now.Before(at), at
}

func (k *key) forget(t *turn) {
	if k.child != nil && !k.child.shared {
		t.nursery.retire(t, k)
	}
	t.lingering.remove(&k.inLingering)
	t.stash.keys.remove(&k.inStash)
	k.inAsked.moveTo(nil, k)
	k.inJudged.moveTo(nil, k)
	k.inOwed.moveTo(nil, k)
	t.alarm.forget(k)
	t.limits.dropPlaces(k)
	delete(t.keys, k.name)
	k.gone = true
	t.aside.offerShelf(k.name)
	if t.nursery.unknown(k) {
		t.unused.Put(k)
	}
}

// unknown tells whether nobody refers to k any more, so that its memory can serve another key: most keys come and go
// with a message that succeeds at once. One whose child stopped may have runs that were given up.
func (n *nursery) unknown(k *key) bool {
	return k.child != nil && k.child == n.shared && k.children == 1 && k.runs == 0 && k.lent == 0 && k.birth == nil && k.marks == 0
}

// lines are where messages of k wait.
func (k *key) lines() [4]*list[Message] {
	return [...]*list[Message]{&k.held, &k.later, &k.returned, &k.fresh}
}

// emptyAll takes all messages of k out of where they wait.
func (k *key) emptyAll(t *turn, each func(*key, *Message)) {
	for _, line := range k.lines() {
		k.empty(t, line, each)
	}
}

// empty takes all messages out of a line of k.
func (k *key) empty(t *turn, line *list[Message], each func(*key, *Message)) {
	for m := line.first(); m != nil; m = line.first() {
		t.take(k, m)
		each(k, m)
	}
}
