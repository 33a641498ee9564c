package consumer

import (
	"math"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fmt"
	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/version"
	"github.com/relaymq/relay/supervisor"
)

var actionNames = [...]string{
	supervisor.GiveBack: "given_back", supervisor.RetryLater: "retried", supervisor.AckMessage: "acked",
	supervisor.DropMessage: "dropped", supervisor.DeadLetter: "dead", supervisor.LetGo: "let_go",
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.seconds.Collect(ch)
	m.ages.Collect(ch)
	m.r.upkeep.Collect(ch)
	m.r.events.Collect(ch)
	m.r.collectArchive(ch)
	m.r.tallies.Collect(ch)
	to := new(sums)
	m.instance(to)
	m.durables(to)
	m.limits(to)
	routes, ended := m.r.counting()
	for name, list := range ended {
		for _, c := range list {
			m.counted(to, name, c)
		}
	}
	dead := uint64(0)
	for _, rt := range routes {
		m.route(to, rt)
		dead += m.waiting(to, rt)
	}
	m.deadLetters(to, dead)
	to.collect(ch)
}

// instance gives what is of the instance as a whole.
func (m *metrics) instance(to *sums) {
	to.gauge(m.build, 1, version.String(), runtime.Version())
	to.gauge(m.connected, one(m.r.nc.IsConnected()))
	to.gauge(m.ready, one(m.r.Ready() == nil))
	where := map[string]int{orphans.Retries: 0, orphans.Durable: 0}
	for _, o := range m.r.orphans.Found() {
		where[o.Kind] += int(o.Messages) + o.Outstanding
	}
	for kind, n := range where {
		to.gauge(m.orphans, n, kind)
	}
}

// durables gives what is of each durable.
func (m *metrics) durables(to *sums) {
	for _, s := range m.r.openSources() {
		to.counter(m.deliveries, s.count.delivered.Load(), s.stream, s.durable)
		to.counter(m.late, s.count.late.Load(), s.stream, s.durable)
		to.counter(m.rebuilds, s.count.rebuilds.Load(), s.stream, s.durable)
		to.counter(m.strays, s.count.strays.Load(), s.stream, s.durable)
		to.gauge(m.unconfirmed, s.session.Stats().Unconfirmed, s.stream, s.durable)
		if l := s.looked.Load(); l != nil && !s.isLost() {
			to.gauge(m.ackPending, l.Outstanding, s.stream, s.durable)
		}
	}
}

// limits gives what is of each limit.
func (m *metrics) limits(to *sums) {
	for _, l := range m.r.limits.Book().Status() {
		to.gauge(m.limitPlaces, l.Bounds.Places, l.Name)
		to.add(m.limitRate, prometheus.GaugeValue, plus, l.Bounds.Rate, l.Name)
		for route, n := range l.Holders {
			to.gauge(m.limitRunning, n, l.Name, m.r.calledName(route))
		}
	}
}

// counted gives what a route has counted, or one of its name that has ended.
func (m *metrics) counted(to *sums, name string, c *counters) {
	for kind := supervisor.Retry; kind < supervisor.Lost; kind++ {
		to.counter(m.verdicts, c.verdicts[kind].Load(), name, kind.String())
	}
	for action, how := range actionNames {
		to.counter(m.settlements, c.settled[action].Load(), name, how)
	}
	to.counter(m.settlements, c.fallback.Load(), name, "fallback")
	to.counter(m.retries, c.naked.Load(), name, "nak")
	to.counter(m.retries, c.parked.Load(), name, "parked")
	to.counter(m.retries, c.kept.Load(), name, "stash")
	to.counter(m.aside, c.aside.Load(), name)
	for i, reason := range reasons {
		to.counter(m.dead, c.letters[i].Load(), name, reason)
	}
	to.counter(m.notDead, c.notDead.Load(), name)
	for _, state := range supervisor.States() {
		to.counter(m.moves, c.moves[state].Load(), name, state.String())
	}
	to.counter(m.expired, c.expired.Load(), name)
	to.counter(m.forgotten, c.forgotten.Load(), name)
	to.counter(m.refused, c.refused.Load(), name)
	for i := range caller.Kinds {
		to.counter(m.questions, c.answers[i].Load(), name, i.String())
	}
	for told := caller.Delivered; told < caller.ToldKinds; told++ {
		to.counter(m.replies, c.replies[told].Load(), name, told.String())
	}
}

// route gives what a route has in hand, and how it is.
func (m *metrics) route(to *sums, rt *route) {
	name, st := rt.name(), rt.group.Status()
	m.counted(to, name, rt.count)
	f, _ := rt.group.Fallback()
	to.counter(m.fallback, f.Done, name, "done")
	to.counter(m.fallback, f.Failed, name, "failed")
	to.gauge(m.substitutes, f.Running, name)
	for _, state := range supervisor.States() {
		to.gauge(m.keys, st.Keys[state], name, state.String())
	}
	holds := rt.holds()
	to.gauge(m.heldMessages, holds.Messages, name)
	to.gauge(m.heldBytes, holds.Bytes, name)
	to.gauge(m.heldMost, rt.most.Load().Bytes, name)
	to.gauge(m.stash, st.StashMessages, name)
	to.gauge(m.asideNow, st.Aside, name)
	to.gauge(m.catchUp, rt.catchUp().Left(), name)
	to.gauge(m.stashBytes, st.StashBytes, name)
	to.gauge(m.running, st.Running, name)
	to.gauge(m.stuck, st.Stuck, name)
	to.gauge(m.window, st.Window, name)
	to.counter(m.panics, st.Counts.Panics, name)
	to.counter(m.hangs, st.Counts.Hangs, name)
	waiting := make(map[string]int)
	for _, l := range rt.cfg.bounding().Names() {
		waiting[l] = 0
	}
	for _, l := range st.Limited {
		waiting[l.Limit] += l.Held
	}
	for limit, n := range waiting {
		to.gauge(m.limitWaiting, n, limit, name)
	}
	to.counter(m.evicted, st.Counts.Evicted, name)
	condition, _, _ := rt.condition(st)
	to.extreme(m.up, math.Min, one(condition == RouteFlowing || condition == RouteLimited || condition == RouteStandby), name)
	if h := rt.holder(); h != nil {
		to.gauge(m.holder, one(h.Here), name)
	}
	if d := m.r.divided.get(name); d != nil && !rt.cfg.isCopy() {
		if n := d.Behind(); n >= 0 {
			to.gauge(m.behind, int(n), name)
		}
	}
	for _, state := range control.States {
		to.gauge(m.state, one(condition == state), name, state)
	}
}

// waiting gives what waits for a route. What is not known is left out: 0 would say that nothing waits. It returns how many dead letters of the route are
// stored, once for all of its parts.
func (m *metrics) waiting(to *sums, rt *route) (dead uint64) {
	name := rt.name()
	if b := rt.backlog(); b != nil {
		to.gauge(m.backlog, int(b.Stream), name, "stream")
		to.gauge(m.backlog, b.Outstanding, name, "outstanding")
		if b.Parked != nil {
			to.gauge(m.backlog, int(*b.Parked), name, "parked")
		}
	}
	if oldest, known := rt.oldest(); known {
		age := time.Duration(0)
		if !oldest.IsZero() {
			age = max(0, time.Since(oldest))
		}
		to.extreme(m.oldest, math.Max, int(age.Seconds()), name)
	}
	if n, known := m.r.upkeep.Dead(name); known && !rt.cfg.isCopy() {
		to.gauge(m.deadStored, n, name)
		dead = uint64(n)
	}
	return dead
}

// deadLetters gives what is of the dead letters as a whole, of which so many are of routes.
func (m *metrics) deadLetters(to *sums, ofRoutes uint64) {
	u := m.r.upkeep.Usage()
	if u == nil {
		return
	}
	to.gauge(m.deadStored, int(u.Entries-min(ofRoutes, u.Entries)), "")
	age := time.Duration(0)
	if u.Entries > 0 {
		age = max(0, time.Since(u.Oldest))
	}
	to.gauge(m.oldestDead, int(age.Seconds()))
}

// sums are metrics, each once: those of the parts of a route together. The zero value is ready.
type sums struct {
	list  []*metricSum
	index map[string]*metricSum
}

type metricSum struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string
	value  float64
}

func (s *sums) add(d *prometheus.Desc, kind prometheus.ValueType, join func(a, b float64) float64, v float64, labels ...string) {
	key := fmt.Sprintf("%p%q", d, labels)
	if was := s.index[key]; was != nil {
		was.value = join(was.value, v)
		return
	}
	if s.index == nil {
		s.index = make(map[string]*metricSum)
	}
	s.index[key] = &metricSum{d, kind, labels, v}
	s.list = append(s.list, s.index[key])
}

func (s *sums) collect(ch chan<- prometheus.Metric) {
	for _, m := range s.list {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value, m.labels...)
	}
}

func (s *sums) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.add(d, prometheus.CounterValue, plus, float64(v), labels...)
}

func (s *sums) gauge(d *prometheus.Desc, v int, labels ...string) {
	s.add(d, prometheus.GaugeValue, plus, float64(v), labels...)
}

// extreme is a gauge that is not added up, but the smallest or largest of all.
func (s *sums) extreme(d *prometheus.Desc, which func(a, b float64) float64, v int, labels ...string) {
	s.add(d, prometheus.GaugeValue, which, float64(v), labels...)
}

func plus(a, b float64) float64 { return a + b }

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
