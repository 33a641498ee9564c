package supervise

import (
	"cmp"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/limit"
)

// Status is a snapshot of a group.
type Status struct {
	State  State // of the route: flowing, waiting, probing or suspended
	Paused bool
	Failed error     // the route is stopped for this reason, and tries again at Until
	Why    string    // the last failure that it waits for; while it probes, too
	Since  time.Time // waiting or probing: when it flowed last; flowing: since when
	Until  time.Time // waiting, suspended: when the next messages are asked; zero when that is now

	Running, Stuck int
	Window         int // messages that wait for a slot
	// Held are messages that wait for a slot, their key or the route, and not for a time of their own.
	Held          int
	StashMessages int
	StashBytes    int
	Aside         int // messages that were given back, and are called back when what they wait for is over
	Children      int // of keys
	// Keys by state. While the route does not flow, those that would flow wait with it.
	Keys map[State]int
	// NotFlowing are the keys that KeyStates lists.
	NotFlowing int
	Counts     Counts
	// Limited is what waits for room in limits, longest first.
	Limited []Limited
}

// KeyStatus is a snapshot of a key that is not simply flowing.
type KeyStatus struct {
	Key      string
	State    State
	Why      string    // the last failure that it waits for; while it probes, too
	Since    time.Time // when it flowed last, through all waits and probes; suspended: since when
	Until    time.Time // waiting: the next try; zero when nobody knows
	Stash    int
	Running  int
	Failures int
	Restarts int
	LastErr  error
	Child    string
	// Limit is the bucket of a limit that has no room for the key, which flows otherwise; empty: it is none.
	Limit string
}

// Status looks at the group and changes nothing.
func (g *Group) Status() Status {
	t := g.lock()
	defer t.unlock()
	s := Status{
		State: t.route.shown(), Paused: t.paused, Failed: t.route.stopped, Why: t.route.outage.why, Since: t.route.outage.since, Until: t.route.until(),
		Running: t.slots.running.n + t.slots.overdue.n, Stuck: t.slots.stuck, Window: t.window.messages, StashMessages: t.stash.messages,
		StashBytes: t.stash.bytes, Aside: len(t.aside.all), Children: t.nursery.kids, Keys: make(map[State]int), Counts: t.counts,
		Limited: t.limits.status(),
	}
	t.limits.eachKey(func(*key, *limit.Bucket, time.Time) { s.NotFlowing++ })
	for _, k := range t.keys {
		state := k.state.is()
		if state == Flowing {
			if why, _, _ := t.order.standing(k); why != "" {
				state = Waiting
			}
		}
		if state != Flowing {
			s.NotFlowing++
		} else if s.State != Flowing {
			state = Waiting
		}
		s.Keys[state]++
		if m := k.held.first(); !t.opts.Ordered || m == nil || !m.Due.After(t.now) {
			s.Held += k.messages() - k.later.n
		}
	}
	return s
}

// KeyStates lists the keys that wait, probe or are suspended, those that wait longest first, at most so many of them. Among
// them are ordered keys whose first message waits for its own delay.
func (g *Group) KeyStates(most int) []KeyStatus {
	t := g.lock()
	defer t.unlock()
	var list []KeyStatus
	for _, k := range t.keys {
		s := KeyStatus{
			Key: k.name, State: k.state.is(), Why: k.outage.why, Since: k.outage.since, Until: k.state.until(), Stash: k.held.n + k.later.n,
			Running: k.runs, Failures: k.failures, Restarts: k.restarts, LastErr: k.lastErr, Child: k.childName(),
		}
		if k.flows() {
			why, since, until := t.order.standing(k)
			if why == "" {
				continue
			}
			s.State, s.Why, s.Since, s.Until = Waiting, why, since, until
		}
		list = append(list, s)
	}
	t.limits.eachKey(func(k *key, b *limit.Bucket, since time.Time) {
		list = append(list, KeyStatus{
			Key: k.name, State: Flowing, Limit: b.Name(), Why: "limit " + b.Name() + " has no room", Since: since, Stash: k.held.n + k.later.n,
			Running: k.runs, Failures: k.failures, Restarts: k.restarts, LastErr: k.lastErr, Child: k.childName(),
		})
	})
	slices.SortFunc(list, func(a, b KeyStatus) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(len(list), most)]
}
