package route

import (
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/supervise"
)

// CheckLimits says what is wrong with the limits that the route names, each fault beginning with the config name of its field.
func (r Spec) CheckLimits(all map[string]limits.Limit) error {
	if r.Part != nil { // the route was checked
		return nil
	}
	return r.bounding().Check(all)
}

// bounding is what limits need to know of the route. Its rate is a limit of its own on each instance. So is its concurrency when it has partitions:
// each partition has a group, and no group knows of the others.
func (r Spec) bounding() limits.Route {
	b := limits.Route{Subjects: r.Subjects, Key: r.Key, Limits: r.Limits, OneAtATime: r.Leased() || r.Partitions > 0}
	if r.Rate.Count > 0 || r.Part != nil && r.Part.To == nil {
		own := limits.Limit{Rate: r.Rate, Burst: r.Burst}
		if r.Part != nil {
			own.Concurrency = r.Concurrency
		}
		b.Own = &limits.Own{Route: r.calledName(), Bounds: own.Bounds()}
	}
	return b
}

// OwnLimit is the limit of the route alone; nil without one.
func (rt *Route) OwnLimit() *limit.Limit { return rt.Home.Bounds.Own(rt.Name()) }

// EnterLimits sets the limit of the route alone, or removes one that it had before.
func (r Spec) EnterLimits(set *limits.Set) {
	if own := r.bounding().Own; own != nil {
		set.SetOwn(*own)
	} else if r.Part == nil {
		set.RemoveOwn(r.Name)
	}
}

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

// limitedBy says what limit keeps messages of the route from starting, and since when; an empty text says that none does.
func (st *Standstill) limitedBy(g supervise.Status) (why string, since time.Time) {
	if g.State != supervise.Flowing || len(g.Limited) == 0 {
		return "", time.Time{}
	}
	i := slices.IndexFunc(g.Limited, func(l supervise.Limited) bool { return l.Shared })
	if i < 0 {
		return "", time.Time{} // of keys: others flow
	}
	return st.Home.Bounds.Describe(g.Limited[i].Limit), g.Limited[i].Since
}
