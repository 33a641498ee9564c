package supervise

import (
	"context"
	"slices"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// A group may be given other options while it runs. It keeps all that it knows: keys, what waits, what was put aside, what runs. What
// runs goes on as it began, with the handler and the timeout that it began with. It holds its slot, and an ordered key waits for it; all
// else starts at once, in the slots that are free.
//
// With another handler, what failed under the former one says nothing any more: keys and a route that wait probe at once, unless the
// handler itself named the time. What the former one still does settles its own message and moves neither key nor route; what it was
// asked while an outage was believed in spends no attempt.

// Revision is the new options that Change gives a group.
type Revision struct {
	// Options are as for New. These do not change: Ordered, AckWait, Limits, Values, Event, Failed, Escalate, More, Hint, Alone, whether there is
	// New, and whether there is a Fallback.
	Options
	// Ended is told when nothing of the former handler runs any more, but for what was given up. Nil: Shared, or New and Stop, are as
	// they were.
	Ended func()
	// FallbackEnded is the same for Fallback.Child.
	FallbackEnded func()
}

// handler is what children are made of.
type handler struct {
	begin func(ctx context.Context, key string) (any, error)
	end   func(ctx context.Context, child any)
	runs  int    // of its children; those that were given up do not count
	ended func() // nil: it is the one of now
}

// take has children made of the handler of these options.
func (n *nursery) take(opts Options, now time.Time) {
	n.handler = &handler{begin: opts.New, end: opts.Stop}
	if n.shared = nil; opts.New == nil {
		n.shared = &child{value: opts.Shared, of: n.handler, values: opts.Values, number: 1, shared: true, started: now}
	}
}

// incarnation is the shared child as a fresh one for a key.
func (n *nursery) incarnation(number int, now time.Time) *child {
	c := *n.shared
	c.number, c.started = number, now
	return &c
}

// expect puts a birth among those that are on their way, by their deadlines.
func (s *slots) expect(b *birth) {
	i := len(s.births)
	for i > 0 && s.births[i-1].deadline.After(b.deadline) {
		i--
	}
	s.births = slices.Insert(s.births, i, b)
}

// former tells whether r is of a handler that was changed since.
func (n *nursery) former(r *run) bool { return r.child.of != n.handler }

// release counts a run of its children out.
func (h *handler) release(fx *effects) {
	if h.runs--; h.runs == 0 && h.ended != nil {
		fx.call(h.ended)
	}
}

// Change gives the group other options. One change comes after the other. What it returns interrupts what still runs of the handlers that
// this change replaced, as Close does, and returns how many that are.
func (g *Group) Change(rev Revision) (interrupt func() int) {
	o := rev.Options.withDefaults()
	t := g.lock()
	t.takeOptions(o)
	var was *handler
	var inner func() int
	if rev.Ended != nil {
		was = t.nursery.handler
	}
	if rev.Ended != nil {
		t.changeHandler(rev.Ended)
	}
	if o.Fallback != nil && t.fallback.group != nil {
		t.fallback.change(t, *o.Fallback, rev.FallbackEnded, &inner)
	}
	t.stash.bound(t)
	for _, k := range t.keys {
		k.attend(t) // it may have more slots now
	}
	t.startAll()
	t.window.tellMore(t)
	t.call(t.opts.More)
	t.rearm()
	t.unlock()
	return func() (n int) {
		if was != nil {
			n = g.interruptOf(was)
		}
		if inner != nil {
			n += inner()
		}
		return n
	}
}

// takeOptions has the options count from now on, with all that follows from them.
func (t *turn) takeOptions(o Options) {
	at := t.opts
	at.Config, at.Retry, at.MaxAttempts, at.MaxAge = o.Config, o.Retry, o.MaxAttempts, o.MaxAge
	at.Concurrency, at.StashMessages, at.StashBytes, at.Timeout = o.Concurrency, o.StashMessages, o.StashBytes, o.Timeout
	at.Shared, at.New, at.Stop, at.Stuck = o.Shared, o.New, o.Stop, o.Stuck
	t.stash.most = usage{o.StashMessages, o.StashBytes}
	t.slots.all = o.Concurrency
	t.slots.terms.change(o.Timeout)
	t.nursery.most = o.Config.MaxChildren
	t.route.evidence.change(o.Config)
	t.route.flood.change(o.Config)
	for n := t.nursery.childless.len(); n > 0 && t.nursery.room(); n-- {
		t.nursery.adopt(t) // there may be more children
	}
}

// changeHandler has new starts use the handler that the options name now.
func (t *turn) changeHandler(ended func()) {
	was := t.nursery.handler
	was.ended = ended
	if was.runs == 0 {
		t.call(ended)
	}
	t.nursery.take(*t.opts, t.now)
	for _, b := range t.slots.births {
		t.nursery.disown(b)
	}
	for _, runs := range []*list[run]{&t.slots.running, &t.slots.overdue} {
		for r := range runs.all() {
			t.route.endQuestion(r)
		}
	}
	for _, k := range t.keys {
		k.changeChild(t)
	}
	t.slots.pace = pace{watching: t.slots.pace.watching, started: t.slots.pace.started}
	t.slots.retries.failed = 0
	t.slots.releaseRetries()
	for q := &t.slots.hangs.keys; q.len() > 0; {
		q.pop() // all keys are attended to
	}
	s := &t.route
	s.evidence.clear()
	s.flood.clear()
	s.mute = 0
	if !s.flows() && !t.now.Before(s.notBefore) && !t.closing {
		s.restarts = 0
		s.inquiry.restart(t.now)
		s.beginRound("its handler was changed")
	}
}

// disown lets a birth of the former handler end without its key waiting for it.
func (n *nursery) disown(b *birth) {
	if b.former {
		return
	}
	b.former = true
	b.cancel()
	n.kids--
	if b.k.birth == b {
		b.k.birth = nil
	}
}

// endQuestion has the run of the former handler be no question any more: another message may be asked, and this one is not charged
// for what it was asked.
func (s *route) endQuestion(r *run) {
	if r.round == 0 && !r.probe {
		return
	}
	if r.round > 0 || r.k.tripped {
		r.cancelled = true // it spends no attempt; its context goes on
	}
	s.endProbe(r)
	r.round, r.probe = 0, false
	r.k.probeEnded(r)
}

// changeChild gives k a child of the handler of now, and forgets what it failed under the former one.
func (k *key) changeChild(t *turn) {
	if c := k.child; c != nil && !c.shared && c.runs > 0 {
		c.former = true
		t.nursery.kids--
	}
	had := k.child != nil
	t.nursery.retire(t, k)
	k.hung = false
	k.endRow()
	switch {
	case t.nursery.shared == nil || !had:
	case k.children == 1 && k.runs == 0:
		k.child = t.nursery.shared
	default:
		k.children++
		k.child = t.nursery.incarnation(k.children, t.now)
	}
	if w, waits := k.state.(*waiting); waits && !w.named && !t.closing {
		k.restarts = 0
		k.probe(t, "its handler was changed")
	}
}

// change is Change for the second handler. It sets interrupt when the turn ends.
func (f *fallback) change(t *turn, o Fallback, ended func(), interrupt *func() int) {
	failing := f.Failing
	f.Fallback = o.withDefaults(t.opts)
	f.Failing = failing
	if !f.Waiting {
		for f.keys.len() > 0 {
			f.keys.pop()
		}
	}
	f.offerAll(t)
	if ended != nil {
		f.endRow()
	}
	inner, rev := f.group, Revision{Options: f.options(t.opts), Ended: ended}
	t.call(func() { *interrupt = inner.Change(rev) })
}

// Former is how many runs of former handlers have not ended. It includes those of the fallback, but not those that were
// given up.
func (g *Group) Former() (n int) {
	t := g.lock()
	for _, runs := range []*list[run]{&t.slots.running, &t.slots.overdue} {
		for r := range runs.all() {
			if t.nursery.former(r) {
				n++
			}
		}
	}
	inner := t.fallback.group
	t.unlock()
	if inner != nil {
		n += inner.Former()
	}
	return n
}

// interruptOf cancels what a former handler still runs, and gives up what does not return within a second. That spends no attempt.
func (g *Group) interruptOf(h *handler) (n int) {
	t := g.lock()
	defer t.unlock()
	for _, runs := range []*list[run]{&t.slots.overdue, &t.slots.running} { // in this order: those that run get there
		for r := range runs.all() {
			if r.child.of != h {
				continue
			}
			n++
			r.cancelled = true
			r.cancel(cancelled)
			if t.slots.running.has(&r.place) {
				t.slots.running.remove(&r.place)
				t.slots.overdue.push(&r.place, r)
				r.wasLate(t.now.Sub(r.deadline))
				t.alarm.arm(r.hangs())
			}
		}
	}
	return n
}

// change has other settings judge the completions. As many of the last ones count as they look at.
func (e *evidence) change(c supervisor.Config) {
	to := newEvidence(c)
	list := newest(e.last, e.next, e.of, to.of)
	e.need, e.of, e.keys, e.window = to.need, to.of, to.keys, to.window
	e.last, e.next, e.failed = nil, 0, 0
	for _, one := range list {
		e.add(one)
	}
}

// change has other settings judge the answers. As many of the last ones count as they look at.
func (f *flood) change(c supervisor.Config) {
	to := newFlood(c)
	list := newest(f.last, f.next, f.of, to.of)
	f.need, f.of = to.need, to.of
	f.last, f.next, f.deads = nil, 0, 0
	for _, one := range list {
		f.add(one)
	}
}

// newest are the last most of what is in a ring for of, the oldest first. next is the place of the oldest once it is full.
func newest[T any](ring []T, next, of, most int) []T {
	if len(ring) < of {
		next = 0
	}
	list := append(slices.Clone(ring[next:]), ring[:next]...)
	return list[max(0, len(list)-most):]
}
