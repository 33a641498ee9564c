package consumer

import (
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/supervise"
)

// Limit is a bound that routes share: how many messages of theirs run at once, how many start in a time, or both. Routes name it in
// [Route.Limits]. A message that finds no room waits, and spends no attempt. Its fields:
//
//	Concurrency int  // handlers that run at once; one that ignores its timeout and was given up does not count. Zero: no bound
//	Rate Rate        // attempts that start in a time. Zero: no bound
//	Burst int        // attempts that may start at once after a while with fewer. Zero: what Rate permits in a twentieth of a second, and at least 1
//	Per string       // a template over the tokens of a message's subject, such as {1}: the bounds hold for each value of it. It may only
//	                 // name tokens that the key of the route has. Empty: they hold for all messages together
//	Scope string     // ScopeInstance or ScopeService. Empty: ScopeInstance. With Per, ScopeService needs routes with instances: one
type Limit = limits.Limit

// Rate is so many in a time: the fields Count, an int, and Per, a [time.Duration] of a second, a minute, an hour or a day. As text it is 100/s, 30/m,
// 1000/h or 5000/d. The zero value is no bound.
type Rate = limits.Rate

// What Limit.Scope says: each instance has the limit for itself, or all instances of the service share it.
const (
	ScopeInstance = limits.ScopeInstance
	ScopeService  = limits.ScopeService
)

// CheckLimits says what is wrong with the limits that a route names, each fault beginning with the config name of its field.
func (r Route) CheckLimits(all map[string]Limit) error {
	if r.part != nil { // the route was checked
		return nil
	}
	return r.bounding().Check(all)
}

// bounding is what decides what bounds the route. An instance bounds it by itself by its rate and, as no group of a partition knows of the
// others, by its concurrency.
func (r Route) bounding() limits.Route {
	b := limits.Route{Subjects: r.Subjects, Key: r.Key, Limits: r.Limits, OneAtATime: r.Leased() || r.Partitions > 0}
	if r.Rate.Count > 0 || r.part != nil && r.part.To == nil {
		own := Limit{Rate: r.Rate, Burst: r.Burst}
		if r.part != nil {
			own.Concurrency = r.Concurrency
		}
		b.Own = &limits.Own{Route: r.calledName(), Bounds: own.Bounds()}
	}
	return b
}

// ownLimit is the limit of the route alone; nil without one.
func (rt *route) ownLimit() *limit.Limit { return rt.relay.limits.Own(rt.name()) }

// enterLimits sets the limit of the route alone, or removes one that it had before.
func (r Route) enterLimits(set *limits.Set) {
	if own := r.bounding().Own; own != nil {
		set.SetOwn(*own)
	} else if r.part == nil {
		set.RemoveOwn(r.Name)
	}
}

// Limits returns the limits that hold now.
func (r *Relay) Limits() map[string]Limit { return r.limits.Now() }

// groupLimits is what the group of the route is bounded by, beside its concurrency, when these limits hold; nil for nothing.
func (r Route) groupLimits(set *limits.Set, all map[string]Limit) *supervise.Limits {
	always, also := set.Needs(r.bounding(), all)
	if always == nil && also == nil {
		return nil
	}
	l := &supervise.Limits{Book: set.Book(), Name: r.Name, Always: always}
	if also != nil {
		l.Also = func(w supervise.Work) []limit.Need { return also(w.(*message).Subject) }
	}
	return l
}

// sharingOf is what this instance shares limits of the service by.
func sharingOf(r *Relay) limits.Sharing {
	return limits.Sharing{
		Membership: r.membership.Membership,
		Named: func(limit string) bool {
			return slices.ContainsFunc(r.routes.all(), func(rt *route) bool { return slices.Contains(rt.cfg.Limits, limit) })
		},
		Tell: func(shared map[string]Limit) {
			since, err := r.membership.Trouble()
			r.routes.tellOfParts(shared, since, err, time.Now())
		},
	}
}

const (
	// noParts is what routes with a limit of the service wait for while the bucket of the fleet is away.
	noParts = "a part of a limit"
	// partsMissed is for how long the instance may have no session before its routes complain: one that was lost is soon replaced.
	partsMissed = time.Second
)

// tellOfParts has routes complain that can start nothing because this instance has no session; err says why, and is nil while it has one.
func (l *routeList) tellOfParts(shared map[string]Limit, since time.Time, err error, now time.Time) {
	for _, rt := range l.all() {
		i := slices.IndexFunc(rt.cfg.Limits, func(name string) bool { _, is := shared[name]; return is })
		if i < 0 || err == nil {
			rt.standstill.troubles.Mended(noParts, now)
		} else if now.Sub(since) >= partsMissed {
			rt.standstill.troubles.Note(noParts, fmt.Errorf("this instance could not renew its lease, so it has no part of limit %s: %w", rt.cfg.Limits[i], err), now)
		}
	}
}

// limitedBy says what limit keeps messages of the route from starting, and since when; an empty text says that none does.
func (st *standstill) limitedBy(g supervise.Status) (why string, since time.Time) {
	if g.State != supervise.Flowing || len(g.Limited) == 0 {
		return "", time.Time{}
	}
	i := slices.IndexFunc(g.Limited, func(l supervise.Limited) bool { return l.Shared })
	if i < 0 {
		return "", time.Time{} // of keys: others flow
	}
	return st.relay.limits.Describe(g.Limited[i].Limit), g.Limited[i].Since
}
