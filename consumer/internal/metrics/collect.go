package metrics

import (
	"math"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/version"
)

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.seconds.Collect(ch)
	c.ages.Collect(ch)
	for _, collect := range c.cfg.Collect {
		collect(ch)
	}
	s, to := c.cfg.Snapshot(), new(sums)
	c.instance(to, s)
	c.durables(to, s.Durables)
	c.limits(to, s.Limits)
	for name, counts := range s.Ended {
		for _, n := range counts {
			c.counted(to, name, n)
		}
	}
	dead := uint64(0)
	for i := range s.Routes {
		c.route(to, &s.Routes[i])
		dead += c.waiting(to, &s.Routes[i])
	}
	c.deadLetters(to, s, dead)
	to.collect(ch)
}

// instance gives what is of the instance as a whole.
func (c *Collector) instance(to *sums, s Snapshot) {
	to.gauge(c.build, 1, version.String(), runtime.Version())
	to.gauge(c.connected, one(s.Connected))
	to.gauge(c.ready, one(s.Ready))
	for kind, n := range s.Orphans {
		to.gauge(c.orphans, n, kind)
	}
	if a := s.Archive; a != nil {
		to.counter(c.archived, a.Stored)
		to.counter(c.notArchived, a.Dropped)
	}
}

// durables gives what is of each durable.
func (c *Collector) durables(to *sums, list []Durable) {
	for _, d := range list {
		to.counter(c.deliveries, d.Count.Delivered.Load(), d.Stream, d.Name)
		to.counter(c.late, d.Count.Late.Load(), d.Stream, d.Name)
		to.counter(c.rebuilds, d.Count.Rebuilds.Load(), d.Stream, d.Name)
		to.counter(c.strays, d.Count.Strays.Load(), d.Stream, d.Name)
		to.gauge(c.unconfirmed, d.Unconfirmed, d.Stream, d.Name)
		if d.AckPending != nil {
			to.gauge(c.ackPending, *d.AckPending, d.Stream, d.Name)
		}
	}
}

// limits gives what is of each limit.
func (c *Collector) limits(to *sums, list []Limit) {
	for _, l := range list {
		to.gauge(c.limitPlaces, l.Places, l.Name)
		to.add(c.limitRate, prometheus.GaugeValue, plus, l.Rate, l.Name)
		for route, n := range l.Running {
			to.gauge(c.limitRunning, n, l.Name, route)
		}
	}
}

// counted gives what a route has counted, or one of its name that has ended.
func (c *Collector) counted(to *sums, name string, n *RouteCount) {
	for kind := supervise.Retry; kind < supervise.Lost; kind++ {
		to.counter(c.verdicts, n.Verdicts[kind].Load(), name, kind.String())
	}
	for action, how := range actionNames {
		to.counter(c.settlements, n.Settled[action].Load(), name, how)
	}
	to.counter(c.settlements, n.Fallback.Load(), name, "fallback")
	to.counter(c.retries, n.Naked.Load(), name, "nak")
	to.counter(c.retries, n.Parked.Load(), name, "parked")
	to.counter(c.retries, n.Kept.Load(), name, "stash")
	to.counter(c.aside, n.Aside.Load(), name)
	for i, reason := range reasons {
		to.counter(c.dead, n.letters[i].Load(), name, reason)
	}
	to.counter(c.notDead, n.NotDead.Load(), name)
	for _, state := range supervise.States() {
		to.counter(c.moves, n.Moves[state].Load(), name, state.String())
	}
	to.counter(c.expired, n.Expired.Load(), name)
	to.counter(c.forgotten, n.Forgotten.Load(), name)
	to.counter(c.refused, n.Refused.Load(), name)
	for i, answer := range c.cfg.Answers {
		to.counter(c.questions, n.Answers[i].Load(), name, answer)
	}
	for i, result := range c.cfg.Replies {
		to.counter(c.replies, n.Replies[i].Load(), name, result)
	}
}

// route gives what a route has in hand, and how it is.
func (c *Collector) route(to *sums, r *Route) {
	name, st := r.Name, r.Group
	c.counted(to, name, r.Count)
	to.counter(c.fallback, r.Fallback.Done, name, "done")
	to.counter(c.fallback, r.Fallback.Failed, name, "failed")
	to.gauge(c.substitutes, r.Fallback.Running, name)
	for _, state := range supervise.States() {
		to.gauge(c.keys, st.Keys[state], name, state.String())
	}
	to.gauge(c.heldMessages, r.Holds.Messages, name)
	to.gauge(c.heldBytes, r.Holds.Bytes, name)
	to.gauge(c.heldMost, r.HeldMost, name)
	to.gauge(c.stash, st.StashMessages, name)
	to.gauge(c.asideNow, st.Aside, name)
	to.gauge(c.catchUp, r.CatchUp, name)
	to.gauge(c.stashBytes, st.StashBytes, name)
	to.gauge(c.running, st.Running, name)
	to.gauge(c.stuck, st.Stuck, name)
	to.gauge(c.window, st.Window, name)
	to.counter(c.panics, st.Counts.Panics, name)
	to.counter(c.hangs, st.Counts.Hangs, name)
	for _, limit := range r.Limits {
		to.gauge(c.limitWaiting, 0, limit, name)
	}
	for _, l := range st.Limited {
		to.gauge(c.limitWaiting, l.Held, l.Limit, name)
	}
	to.counter(c.evicted, st.Counts.Evicted, name)
	up := r.State == control.StateFlowing || r.State == control.StateLimited || r.State == control.StateStandby
	to.extreme(c.up, math.Min, one(up), name)
	if r.Here != nil {
		to.gauge(c.holder, one(*r.Here), name)
	}
	if r.Behind != nil {
		to.gauge(c.behind, *r.Behind, name)
	}
	for _, state := range control.States {
		to.gauge(c.state, one(r.State == state), name, state)
	}
}

// waiting gives what waits for a route. It returns how many dead letters of the route are stored, once for all of its parts.
func (c *Collector) waiting(to *sums, r *Route) (dead uint64) {
	if b := r.Backlog; b != nil {
		to.gauge(c.backlog, int(b.Stream), r.Name, "stream")
		to.gauge(c.backlog, b.Outstanding, r.Name, "outstanding")
		if b.Parked != nil {
			to.gauge(c.backlog, int(*b.Parked), r.Name, "parked")
		}
	}
	if r.Oldest != nil {
		age := time.Duration(0)
		if !r.Oldest.IsZero() {
			age = max(0, time.Since(*r.Oldest))
		}
		to.extreme(c.oldest, math.Max, int(age.Seconds()), r.Name)
	}
	if r.Dead != nil {
		to.gauge(c.deadStored, *r.Dead, r.Name)
		dead = uint64(*r.Dead)
	}
	return dead
}

// deadLetters gives what is of the dead letters as a whole, of which so many are of routes.
func (c *Collector) deadLetters(to *sums, s Snapshot, ofRoutes uint64) {
	u := s.DeadLetters
	if u == nil {
		return
	}
	to.gauge(c.deadStored, int(u.Entries-min(ofRoutes, u.Entries)), "")
	age := time.Duration(0)
	if u.Entries > 0 {
		age = max(0, time.Since(u.Oldest))
	}
	to.gauge(c.oldestDead, int(age.Seconds()))
}
