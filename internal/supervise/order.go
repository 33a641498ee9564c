package supervise

import (
	"container/heap"
	"time"
)

// order is what a group knows of all its keys together when their messages start in the order of the stream.
type order struct {
	*moment
	gate       gate
	numbering  numbering
	called     int       // messages that were called back, and are on their way
	callsReady time.Time // when they are ready to come
	progress   time.Time // when a message was done with whose key has more of them, in the stash or outside
	glanced    time.Time // when more was asked for although the stash is full and later messages wait
	owed       list[key] // that were to have messages called back while the route did not flow
}

// numbering is how often sequences began again.
type numbering struct{ others, replayed uint32 }

// former tells whether a message was delivered before its sequences began again: it will not come again.
func (o *order) former(m *Message) bool {
	if m.Replayed {
		return m.numbering.replayed != o.numbering.replayed
	}
	return m.numbering.others != o.numbering.others
}

// outside are the messages of an ordered key that left without being done and have not come again, by sequence. Nothing
// overtakes them, until they are so late that another instance must have them.
type outside struct {
	absent   map[uint64]*absent
	order    sequenceHeap // all of them, and some that have come again
	uncalled sequenceHeap // those that were not called back, and some that have come again
	called   int          // how many were called back and are on their way
	late     time.Time    // when the first of these is late; it may have come since
	all      *int         // of all keys
}

type absent struct {
	until  time.Time
	due    time.Time // its own delay is over; it is not called back before
	away   Away      // nil: it was never here
	called bool
	asked  time.Time // when it was called last
	times  int       // it was called
	count  *int      // of those that were called with it; may be nil
	beside bool      // its owner has it, and brings it back: however long that takes
}

type sequenceHeap []uint64

func (h sequenceHeap) Len() int           { return len(h) }
func (h sequenceHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h sequenceHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sequenceHeap) Push(x any)        { *h = append(*h, x.(uint64)) }
func (h *sequenceHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// outsideFor is how long an ordered key waits for a message beyond its due time: it may be lost on its way once.
func (o *order) outsideFor() time.Duration { return max(time.Minute, 2*o.opts.AckWait) }

func (o *outside) add(seq uint64, a *absent, all *int) {
	o.back(seq)
	o.all = all
	if o.absent == nil {
		o.absent = make(map[uint64]*absent)
	}
	o.absent[seq] = a
	heap.Push(&o.order, seq)
	if a.away != nil {
		heap.Push(&o.uncalled, seq)
	}
	if len(o.order)+len(o.uncalled) > 4*len(o.absent)+64 {
		o.rebuild()
	}
}

// rebuild forgets what is back: messages that come and go for hours would fill the heaps.
func (o *outside) rebuild() {
	o.order, o.uncalled = o.order[:0], o.uncalled[:0]
	for seq, a := range o.absent {
		o.order = append(o.order, seq)
		if a.away != nil && !a.called {
			o.uncalled = append(o.uncalled, seq)
		}
	}
	heap.Init(&o.order)
	heap.Init(&o.uncalled)
}

// back notes that a message came again, or is not expected any more. It tells whether it was called.
func (o *outside) back(seq uint64) (called bool) {
	a := o.absent[seq]
	if a == nil {
		return false
	}
	if a.called {
		o.called--
		*o.all--
		if a.count != nil {
			*a.count--
		}
	}
	called = a.called
	if delete(o.absent, seq); len(o.absent) == 0 {
		*o = outside{}
	}
	return called
}

// next is the smallest sequence that is still expected, and until when.
func (o *outside) next(now time.Time) (seq uint64, until time.Time, any bool) {
	for len(o.order) > 0 {
		seq := o.order[0]
		a := o.absent[seq]
		if a != nil && a.beside {
			a.until = now.Add(time.Minute) // when to look again
		}
		if a != nil && now.Before(a.until) {
			return seq, a.until, true
		}
		heap.Pop(&o.order)
		o.back(seq)
	}
	return 0, time.Time{}, false
}

// expect prolongs the wait for all of them.
func (o *outside) expect(until time.Time) {
	for _, a := range o.absent {
		a.until = later(a.until, until)
	}
}

// expectAbsent is for the end of a pause: what was turned away meanwhile is as likely to come as ever.
func (o *order) expectAbsent(keys map[string]*key) {
	until := o.now.Add(o.outsideFor())
	for _, k := range keys {
		if len(k.outside.absent) > 0 {
			k.outside.expect(until)
			k.inOwed.moveTo(&o.owed, k)
			o.alarm.wake(k, until)
		}
	}
}

// call returns at most n of those that can be called back, the smallest sequences first. Count is how many are on their way, if it is not nil.
func (o *outside) call(n int, count *int, now time.Time) (list []Away) {
	for len(list) < n && len(o.uncalled) > 0 {
		if a := o.absent[heap.Pop(&o.uncalled).(uint64)]; a != nil && a.away != nil && !a.called {
			a.called, a.count, a.asked, a.times = true, count, now, 1
			o.called++
			*o.all++
			if late := now.Add(calledAgain); o.called == 1 || late.Before(o.late) {
				o.late = late
			}
			if count != nil {
				*count++
			}
			list = append(list, a.away)
		}
	}
	return list
}

// callLate has those called once more that were called and did not come, the less often the more often they were. It returns when to look again.
func (o *outside) callLate(t *moment) (next time.Time) {
	if t.now.Before(o.late) {
		return o.late
	}
	for _, a := range o.absent {
		if !a.called || a.beside {
			continue
		}
		at := a.asked.Add(calledAgain << min(a.times-1, 4))
		if !at.After(t.now) {
			a.asked, a.times = t.now, a.times+1
			at = t.now.Add(calledAgain << min(a.times-1, 4))
			t.call(func() { a.away.CallBack(time.Time{}) })
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	o.late = next
	return next
}

const (
	// maxCalled is how many messages of a key are called back at once.
	maxCalled = 64
	// calledFor is how long those that are called back take to be ready at the server: what is asked for before that is other
	// messages, which would have to wait for them.
	calledFor = 150 * time.Millisecond
	// calledAgain is how long after that one that did not come is called once more, at first. It is more than what Recall takes for late.
	calledAgain = 4 * time.Second
)

// callBack asks for messages of an ordered key that the stash had no room for, once the key gets to them. They are worth more
// than what is in the stash: their key goes on with them, and others wait behind them. While the route does not flow the key waits for
// its turn in recall.
func (o *order) callBack(t *turn, k *key) {
	if !t.route.flows() {
		k.inOwed.moveTo(&o.owed, k)
		return
	}
	k.inOwed.moveTo(nil, k)
	if first, _, any := k.outside.next(o.now); any && k.messages() == 0 && t.aside.waitsForRoute(first) {
		return // nothing waits behind it, and recall knows whose turn it is
	}
	n := 1 // always: the first one lets the others go on
	if o.called < t.opts.StashMessages/2 {
		n = max(n, min(maxCalled, t.opts.StashMessages/2/max(1, t.stash.keys.n)))
	}
	o.callSome(k, n, nil)
}

// callHead is callBack for the first of them only, also while the route asks.
func (o *order) callHead(k *key, count *int) { o.callSome(k, 1, count) }

func (o *order) callSome(k *key, n int, count *int) {
	if len(k.outside.absent) == 0 || k.is(Waiting) || k.is(Suspended) || o.standsStill() {
		return
	}
	if k.outside.called > 0 {
		if at := k.outside.callLate(o.moment); !at.IsZero() {
			o.alarm.wake(k, at)
		}
		return
	}
	first, _, any := k.outside.next(o.now)
	if m := k.held.first(); !any || m != nil && m.Sequence < first {
		return
	}
	if k.outside.absent[first].beside {
		return
	}
	if due := k.outside.absent[first].due; due.After(o.now) {
		o.alarm.wake(k, due)
		return
	}
	for _, w := range k.outside.call(n, count, o.now) {
		o.call(func() { w.CallBack(time.Time{}) })
	}
	if ready := o.callsReady; o.now.After(ready.Add(calledFor)) {
		o.callsReady = o.now.Add(calledFor)
	}
	o.alarm.wake(k, o.now.Add(calledFor))
}

// ripe is how many messages that were called are ready to come.
func (o *order) ripe() int {
	if o.now.Before(o.callsReady) {
		return 0
	}
	return o.called
}

// progressWithin is for how long a full stash of which something was done keeps more messages from coming.
const progressWithin = time.Second

// room bounds how many messages an ordered group asks for by the room in its stash: what waits behind the head of its key is not in
// the window. A stash that is full and stays so must not keep the messages of healthy keys from coming: then as many as
// run at once are asked for, and the newest of the keys that wait are given back.
func (o *order) room(messages int, s *stash) int {
	if !o.opts.Ordered {
		return messages
	}
	least, few := o.opts.Concurrency, 32
	if s.mostlyFailed() {
		few = 256 // what comes again comes before what is new, and here much of it does
	}
	switch {
	case o.now.Before(o.callsReady):
		return 0
	case o.called > 0 && o.now.Sub(o.callsReady) < progressWithin:
		least = o.called + o.glance(few, glanceEvery)
	case o.now.Sub(o.progress) < progressWithin:
		least = o.glance(few, glanceEvery)
	case o.gate.isShut(o.now):
		// Nearly all that comes would have to go back. What is waited for comes first.
		least = o.glance(few, meterPeriod)
	}
	return min(messages, max(s.room(), least))
}

// jammed tells whether the stash is full, some of it failed, its keys do not go on, and nothing that was called is on its way.
func (o *order) jammed(s *stash) bool {
	return s.room() <= 0 && s.failed.messages > 0 && o.called == 0 && o.now.Sub(o.progress) >= progressWithin && !o.gate.isShut(o.now)
}

// glanceEvery is how often some messages are asked for although the stash is full and its keys go on: others may be healthy.
const glanceEvery = 50 * time.Millisecond

// glance is how many are asked for, so often: few, but not fewer than can run.
func (o *order) glance(few int, every time.Duration) int {
	if o.now.Sub(o.glanced) < every {
		return 0
	}
	o.glanced = o.now
	return max(o.opts.Concurrency, few)
}

// away notes that a message of an ordered key leaves, to come again at due. One from before sequences began again never does.
func (o *order) away(t *turn, m *Message, due time.Time) {
	if !t.opts.Ordered || t.closing || o.former(m) {
		return
	}
	k := t.keys[m.Key]
	if k == nil {
		k = t.newKey(m.Key) // its key ended while it ran
	}
	a := &absent{until: due.Add(o.outsideFor()), due: m.Due}
	if m.Work != nil {
		a.away = m.Work.Away()
	}
	k.outside.add(m.Sequence, a, &o.called)
	t.alarm.wake(k, due.Add(o.outsideFor()))
}

// blocked tells whether a message of an ordered key has to wait for its own delay or for an earlier message.
func (o *order) blocked(k *key, m *Message) bool {
	if k.lent > 0 || m.storing || m.Due.After(o.now) || o.gate.holds(m, o.now) {
		return true
	}
	first, _, any := k.outside.next(o.now)
	return any && first < m.Sequence
}

// first is the first message of an ordered key that is here.
func (k *key) first() *Message {
	if m := k.held.first(); m != nil {
		return m
	}
	return k.fresh.first()
}

// head is the first message of an ordered key, if it may start.
func (o *order) head(k *key) *Message {
	m := k.first()
	if m == nil || o.blocked(k, m) {
		return nil
	}
	return m
}

// isFirst tells whether no message of its ordered key comes before m, here or outside.
func (o *order) isFirst(k *key, m *Message) bool {
	if first := k.held.first(); first != nil && first.Sequence < m.Sequence {
		return false
	}
	if first := k.fresh.first(); first != nil && first.Sequence < m.Sequence {
		return false
	}
	first, _, any := k.outside.next(o.now)
	return (!any || m.Sequence < first) && !o.gate.holds(m, o.now)
}

// askable is the best question of the messages of k with such a past. Of an ordered key it can be the first message only.
func (o *order) askable(k *key, with past) *Message {
	if !o.opts.Ordered {
		return k.askable(with)
	}
	if m := o.head(k); m != nil && m.past() == with {
		return m
	}
	return nil
}
