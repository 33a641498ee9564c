package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/supervisor"

	"github.com/relaymq/relay/internal/teeth"
)

// A route may have a second handler, its fallback. While a key or the route waits, what would only be held is lent to it: what it
// acknowledges is done, and what it fails comes back and waits as if there were none. It may also be the last resort of messages
// before they are dead-lettered. It changes nothing about the main handler: no attempt is spent, nothing trips, and probes are
// asked of the main handler only.
//
//	stash ── offer ▶ keys ── lend ▶ lent ── Settle ▶ returned ─┬─ done
//	                                                            ├─ keep: it waits, and may be lent again after a while
//	   spent ── dies ───────────────▶ lent ── Settle ▶ returned ┴─ dead letter
//
// The fallback is a Group of its own, with its slots, its timeout and its children, so that a panic or a hang of it is contained
// like that of any handler. A message that it has is in no line of its key: at most as many are lent as it has slots.

// Fallback is the second handler of a route.
type Fallback struct {
	// Waiting gives the fallback messages whose key or route waits. Config.Forward must then be stash.
	Waiting bool
	// Exhausted gives the fallback messages whose attempts or whose time are spent.
	Exhausted bool
	// Concurrency is how many messages the fallback has at once. Zero means 8.
	Concurrency int
	// Timeout is the timeout of an attempt of the fallback. Zero means the timeout of the route.
	Timeout time.Duration
	// Child is handed to [Substitute.DoFallback].
	Child any
	// Failing is told when several attempts in a row failed, with the last error, and nil when one succeeds again. It must not
	// block. May be nil.
	Failing func(error)
}

// Substitute is a Work that a fallback can handle.
type Substitute interface {
	// DoFallback is Work.Do with the fallback's child. Number is the attempt of the fallback, the first one being 1.
	DoFallback(ctx context.Context, number int, child any) Verdict
}

// failingAfter is how many attempts of a fallback must fail in a row before its owner is told.
const failingAfter = 5

// fallback is what a group knows of its fallback.
type fallback struct {
	*moment
	Fallback
	group *Group // nil: there is none
	keys  queue  // with messages that it may have
	lent  int
	// Until then a slot is kept from messages that wait: a spent one found none.
	kept time.Time
	// How many of its messages succeeded, and how many failed.
	done, failed uint64
	row          int       // failures since the last success
	since        time.Time // of the first of them
	err          error     // of the last one
}

// refusal is what is known of a message that the fallback failed.
type refusal struct {
	times int
	again time.Time // it may be lent from then on
	never bool      // the fallback said that it never can
}

func (f Fallback) withDefaults(opts *Options) Fallback {
	f.Concurrency, f.Timeout = cmp.Or(f.Concurrency, 8), cmp.Or(f.Timeout, opts.Timeout)
	return f
}

func newFallback(f *Fallback, of *moment) fallback {
	all := fallback{moment: of, keys: queue{mark: markFallback}}
	if f != nil {
		all.Fallback = f.withDefaults(of.opts)
		all.group = New(all.options(of.opts))
	}
	return all
}

// options are the options of the fallback's own group.
func (f *fallback) options(opts *Options) Options {
	return Options{
		// What it fails goes back at once, and what it did is soon forgotten: there is no outage of its own to wait for.
		Config: supervisor.Config{
			TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Forward: supervisor.ForwardGiveBack, MaxStuck: opts.Config.MaxStuck, Window: time.Second,
			Restart: supervisor.Backoff{Min: 200 * time.Millisecond, Max: time.Second},
		},
		Retry: opts.Retry, Concurrency: f.Concurrency, Timeout: f.Timeout, AckWait: opts.AckWait, StashBytes: opts.StashBytes,
		Shared: f.Child, Values: opts.Values, near: true,
	}
}

// loan is a message that the fallback has.
type loan struct {
	group *Group
	k     *key
	m     *Message
	death *Outcome // what becomes of it when the fallback fails, too; nil: it waits
	// Of a Lost verdict: it will not come again. A handler that was given up may still set it.
	gone atomic.Bool
}

// Do calls the fallback.
func (l *loan) Do(ctx context.Context, number int, child any) Verdict {
	w, ok := l.m.Work.(Substitute)
	if !ok {
		return Verdict{Kind: Retry, Err: fmt.Errorf("%T does not implement Substitute, so the fallback cannot handle it", l.m.Work), NotStarted: true}
	}
	v := w.DoFallback(ctx, number, child)
	l.gone.Store(v.Gone)
	v.FailRoute = false // its own fault, whatever it is, and the message must not wait for it to be mended
	return v
}

// Settle takes the message back.
func (l *loan) Settle(o Outcome) { l.group.returned(l, o) }

// CallBack does nothing: what the fallback gives back is here already.
func (*loan) CallBack(time.Time) {}

// Away is the loan itself, of which little is kept anyway.
func (l *loan) Away() Away { return l }

// Remember is not called: the fallback keeps no order.
func (*loan) Remember(_ Outcome, stored func(bool)) { stored(true) }

// offer notes that k may have messages for the fallback.
func (f *fallback) offer(t *turn, k *key) {
	if f.Waiting && t.route.waits(k) && k.held.n+k.later.n > 0 {
		f.keys.push(k)
	}
}

// offerAll is offer for all keys: the route began to wait.
func (f *fallback) offerAll(t *turn) {
	if f.Waiting {
		for k := range t.stash.keys.all() {
			f.offer(t, k)
		}
	}
}

// lend gives waiting messages to the fallback, as many as the fallback has slots for. It comes after startAll, so that the main handler has its probes first.
func (f *fallback) lend(t *turn) {
	if f.keys.len() == 0 || t.standsStill() || t.route.doubt || teeth.Lend() {
		return
	}
	for f.keys.len() > 0 && f.lent+f.spare() < f.Concurrency {
		k := f.keys.pop()
		if k.gone || !t.route.waits(k) || k.is(Suspended) || !f.mayLend(k, &t.slots.recent) {
			continue // it is offered again when that changes
		}
		if k.notLent.After(t.now) {
			t.alarm.wake(k, k.notLent)
			continue
		}
		m := f.lendable(t, k)
		if m == nil {
			continue
		}
		t.take(k, m)
		f.lendTo(&loan{group: t.group, k: k, m: m})
		f.keys.push(k)
		if n := t.stash.messages; n == 0 || n == t.stash.most.messages/2 {
			t.call(t.opts.More)
		}
	}
}

// mayLend tells whether the fallback may have one more message of k that waits. Like a slot of the main handler, a key has at most
// half of its slots while others had a message lately, and one message at a time when its order is kept.
func (f *fallback) mayLend(k *key, recent *recentKeys) bool {
	return f.lent+f.spare() < f.Concurrency && f.hasShare(k, f.Concurrency/2, recent)
}

// mayLendSpent is mayLend for a message that is spent: the slot that is kept for it is also beyond the share of its key.
func (f *fallback) mayLendSpent(k *key, recent *recentKeys) bool {
	return f.lent < f.Concurrency && f.hasShare(k, max(1, f.Concurrency/2)+f.spare(), recent)
}

// hasShare tells whether the fallback may have one more message of k. Share is how many it may have of k
// while others had a message lately. Of an ordered key it may have one,
// while the main handler has none.
func (f *fallback) hasShare(k *key, share int, recent *recentKeys) bool {
	switch {
	case f.opts.Ordered:
		return k.lent == 0 && k.runs == 0
	case recent.others(k.name, f.now):
		return k.lent < max(1, share)
	}
	return true
}

// spare is how many slots are kept from messages that wait.
func (f *fallback) spare() int {
	if f.now.Before(f.kept) {
		return 1
	}
	return 0
}

// lendable is the next message of k that the fallback may have; nil when there is none. The delay of one that failed does not
// count: it is for the main handler. That of one that was put off does.
func (f *fallback) lendable(t *turn, k *key) *Message {
	keep := f.reserved(t, k)
	var soonest time.Time
	may := func(m *Message) bool {
		switch r := m.refused; {
		case m == keep, m.storing, t.opts.runsAlone(m), m.Due.After(t.now) && !m.judged(), r != nil && r.never:
			return false
		case r != nil && r.again.After(t.now):
			if soonest.IsZero() || r.again.Before(soonest) {
				soonest = r.again
			}
			return false
		}
		return true
	}
	defer func() {
		if !soonest.IsZero() {
			t.alarm.wake(k, soonest)
		}
	}()
	if t.opts.Ordered {
		m := k.held.first()
		if m == nil || !t.order.isFirst(k, m) || !may(m) {
			return nil
		}
		return m
	}
	for m := range k.held.all() {
		if may(m) {
			return m
		}
	}
	for m := range k.later.all() {
		if may(m) {
			return m
		}
	}
	return nil
}

// reserved is the message of k that the main handler is about to be asked with; nil when there is none.
func (f *fallback) reserved(t *turn, k *key) *Message {
	switch {
	case t.route.flows() && k.is(Probing): // also while all slots are taken, or a busy route would never probe it
		return k.state.choose(t, k, returned)
	case t.route.is() == Probing && k.birth != nil: // its child is made for that
		if m := k.state.candidate(t, k, unjudged); m != nil {
			return m
		}
		return k.state.candidate(t, k, failedBefore)
	}
	return nil
}

// lendTo gives the fallback a message that is in no line.
func (f *fallback) lendTo(l *loan) {
	f.lent++
	l.k.lent++
	times := 0
	if l.m.refused != nil {
		times = l.m.refused.times
	}
	m := &Message{Work: l, Key: l.m.Key, Sequence: l.m.Sequence, Size: l.m.Size, Attempts: times}
	f.call(func() { f.group.Deliver(m) })
}

// returned takes in what the fallback has done with a message.
func (g *Group) returned(l *loan, o Outcome) {
	t := g.lock()
	f, k, m := &t.fallback, l.k, l.m
	f.lent--
	k.lent--
	t.window.meter.done++
	t.order.progress = t.now
	switch o.Action {
	case AckMessage, DropMessage:
		f.worked()
		t.settle(m, Outcome{Action: o.Action, Err: o.Err, Why: o.Why, Fallback: true})
	case LetGo:
		t.settle(m, Outcome{Action: LetGo, Why: o.Why})
		if !l.gone.Load() {
			t.order.away(t, m, t.now)
		}
	case GiveBack: // it did not start, or said that it wants it later
		if o.inUse {
			t.giveBack(m, later(o.Due, t.now.Add(minGiveBack)), "its fallback did not return", o.Err)
			break
		}
		if !o.Snoozed {
			k.notLent = o.Due // the key waits there, too: all of its messages would come back at once
		}
		t.fallback.putOff(t, l, later(o.Due, t.now.Add(minGiveBack)))
	default:
		t.fallback.refused(t, l, o)
	}
	k.attend(t)
	t.calm()
	t.startAll()
	t.unlock()
}

// putOff takes back a message of which the fallback has said nothing.
func (f *fallback) putOff(t *turn, l *loan, again time.Time) {
	m := l.m
	if l.death != nil {
		t.giveBack(m, again, "its fallback was not ready", nil)
		return
	}
	if m.refused == nil {
		m.refused = new(refusal)
	}
	m.refused.again = again
	t.keep(l.k, m)
}

// lendsProbe tells whether a message that failed as a probe, and is charged for it, stays for the fallback rather than go away for
// its delay: it would come again to be the next probe, and the fallback would never have it.
func (f *fallback) lendsProbe(t *turn, r *run, how failure) bool {
	return f.Waiting && (r.probe || r.round > 0 || t.route.failsAgain(r.k)) && how.spend && !how.held && !how.hung && !t.opts.runsAlone(r.m)
}

// refused takes back a message that the fallback failed.
func (f *fallback) refused(t *turn, l *loan, o Outcome) {
	m := l.m
	f.fails(o.Err)
	hung := errors.Is(o.Err, ErrHandlerHung) // the bytes may still be in use there: it must come again with its own
	switch {
	case l.death != nil:
		death := *l.death
		death.Err = fmt.Errorf("%s; the fallback failed, too: %s", text(death.Err), text(o.Err))
		t.settle(m, death)
		return
	case m.refused == nil:
		m.refused = new(refusal)
	}
	m.refused.times++
	m.refused.again, m.refused.never = o.Due, o.Action == DeadLetter
	if hung {
		t.giveBack(m, later(o.Due, t.now.Add(minGiveBack)), "its fallback did not return", f.err)
		return
	}
	t.keep(l.k, m)
}

// worked notes a success.
func (f *fallback) worked() {
	f.done++
	f.endRow()
}

// endRow forgets the failures in a row.
func (f *fallback) endRow() {
	if f.row >= failingAfter {
		f.tellFailing(nil)
	}
	f.row, f.since, f.err = 0, time.Time{}, nil
}

// fails notes a failure.
func (f *fallback) fails(err error) {
	f.failed++
	if f.row++; f.row == 1 {
		f.since = f.now
	}
	f.err = err
	if f.row == failingAfter {
		f.tellFailing(err)
	}
}

// tellFailing tells the owner that several attempts failed, or with nil that this is over.
func (f *fallback) tellFailing(err error) {
	if tell := f.Failing; tell != nil {
		f.call(func() { tell(err) })
	}
}

// dies settles a message whose attempts or whose time are spent: it is dead, unless the fallback is its last resort. It goes away
// first, so that its attempts are stored, and when it comes again while the fallback has no slot for it.
func (f *fallback) dies(t *turn, k *key, m *Message, o Outcome) {
	switch {
	case !f.Exhausted, t.opts.runsAlone(m), k.gaveUp():
		t.settle(m, o)
	case t.paused:
		t.turnAwayPaused(k, m)
	case t.closing:
		t.giveBack(m, time.Time{}, "shutting down", nil)
	case k.is(Suspended):
		t.refuse(k, m)
	case t.route.doubt:
		t.aside.put(t, k, m, t.aside.until(m, t.route.waitOf(k)), "the route is suspended", nil)
	case m.unsaved:
		t.giveBack(m, t.now.Add(minGiveBack), "it waits for the fallback", nil)
	case t.held, t.opts.Ordered && !t.order.isFirst(k, m):
		f.busy(t, m)
	case !f.mayLendSpent(k, &t.slots.recent):
		f.kept = t.now.Add(keptFor)
		t.alarm.arm(f.kept)
		f.busy(t, m)
	default:
		f.kept = time.Time{}
		f.lendTo(&loan{group: t.group, k: k, m: m, death: new(o)})
	}
}

// busy gives back a spent message for which the fallback had no slot.
func (f *fallback) busy(t *turn, m *Message) {
	away := lastResortMin << max(0, min(m.Returns, 4))
	t.giveBack(m, t.now.Add(time.Duration(float64(away)*(1+rand.Float64()))), "its fallback is busy", nil)
}

// lastResortMin is how long a message stays away at least for which the fallback had no slot.
const lastResortMin = 500 * time.Millisecond

// keptFor is how long a slot is kept for a message that found none: longer than such a message stays away.
const keptFor = 20 * time.Second

// atWork is how many handlers and factories run now, with the messages that the fallback has.
func (t *turn) atWork() int { return t.slots.busy() + t.fallback.lent }

// FallbackStatus is a snapshot of a fallback.
type FallbackStatus struct {
	Running int // messages that it has now
	Stuck   int // of its handlers, those that ignore their timeout
	// Done and Failed count its attempts.
	Done, Failed uint64
	// Row is how many failed since the last one that succeeded, Since when the first of these did, and Err why the last one did.
	Row   int
	Since time.Time
	Err   error
}

// Fallback looks at the fallback; ok is false when there is none.
func (g *Group) Fallback() (s FallbackStatus, ok bool) {
	t := g.lock()
	f := &t.fallback
	inner := f.group
	s = FallbackStatus{Running: f.lent, Done: f.done, Failed: f.failed, Row: f.row, Since: f.since, Err: f.err}
	t.unlock()
	if inner == nil {
		return s, false
	}
	_, s.Stuck = inner.Busy()
	return s, true
}
