package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/supervise"
)

// CheckLimits says what is wrong with the limits that the route names, each fault beginning with the config name of its field.
func (r Spec) CheckLimits(all map[string]limits.Limit) error {
	if r.part != nil { // the route was checked
		return nil
	}
	return r.bounding().Check(all)
}

// bounding is what decides what bounds the route. An instance bounds it by itself by its rate and, as no group of a partition knows of the
// others, by its concurrency.
func (r Spec) bounding() limits.Route {
	b := limits.Route{Subjects: r.Subjects, Key: r.Key, Limits: r.Limits, OneAtATime: r.Leased() || r.Partitions > 0}
	if r.Rate.Count > 0 || r.part != nil && r.part.To == nil {
		own := limits.Limit{Rate: r.Rate, Burst: r.Burst}
		if r.part != nil {
			own.Concurrency = r.Concurrency
		}
		b.Own = &limits.Own{Route: r.calledName(), Bounds: own.Bounds()}
	}
	return b
}

// ownLimit is the limit of the route alone; nil without one.
func (rt *Route) ownLimit() *limit.Limit { return rt.Engine.limits.Own(rt.name()) }

// enterLimits sets the limit of the route alone, or removes one that it had before.
func (r Spec) enterLimits(set *limits.Set) {
	if own := r.bounding().Own; own != nil {
		set.SetOwn(*own)
	} else if r.part == nil {
		set.RemoveOwn(r.Name)
	}
}

// Limits returns the limits that hold now.
func (r *Engine) Limits() map[string]limits.Limit { return r.limits.Now() }

// groupLimits is what the group of the route is bounded by, beside its concurrency, when these limits hold; nil for nothing.
func (r Spec) groupLimits(set *limits.Set, all map[string]limits.Limit) *supervise.Limits {
	always, also := set.Needs(r.bounding(), all)
	if always == nil && also == nil {
		return nil
	}
	l := &supervise.Limits{Book: set.Book(), Name: r.Name, Always: always}
	if also != nil {
		l.Also = func(w supervise.Work) []limit.Need { return also(w.(*Message).Subject) }
	}
	return l
}

// sharingOf is what this instance shares limits of the service by.
func sharingOf(r *Engine) limits.Sharing {
	return limits.Sharing{
		Membership: r.Membership.Membership,
		Named: func(limit string) bool {
			return slices.ContainsFunc(r.Routes.All(), func(rt *Route) bool { return slices.Contains(rt.Spec.Limits, limit) })
		},
		Tell: func(shared map[string]limits.Limit) {
			since, err := r.Membership.Trouble()
			r.Routes.tellOfParts(shared, since, err, time.Now())
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
func (l *routeList) tellOfParts(shared map[string]limits.Limit, since time.Time, err error, now time.Time) {
	for _, rt := range l.All() {
		i := slices.IndexFunc(rt.Spec.Limits, func(name string) bool { _, is := shared[name]; return is })
		if i < 0 || err == nil {
			rt.Standstill.troubles.Mended(noParts, now)
		} else if now.Sub(since) >= partsMissed {
			rt.Standstill.troubles.Note(noParts, fmt.Errorf("this instance could not renew its lease, so it has no part of limit %s: %w", rt.Spec.Limits[i], err), now)
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
	return st.Engine.limits.Describe(g.Limited[i].Limit), g.Limited[i].Since
}
