package consumer

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/supervisor"
)

// counters are those of a route; their labels come from the configuration alone, never from messages.
type counters struct {
	verdicts [6]atomic.Uint64 // by supervisor.Kind
	settled  [6]atomic.Uint64 // by supervisor.Action
	moves    [5]atomic.Uint64 // of keys and the route, by supervisor.State
	naked    atomic.Uint64
	parked   atomic.Uint64
	fallback atomic.Uint64 // acknowledged by the fallback
	kept     atomic.Uint64 // failed, and waits in the stash
	aside    atomic.Uint64
	notDead  atomic.Uint64 // dead letters that could not be stored
	letters  [5]atomic.Uint64
	seconds  prometheus.Histogram
	ages     prometheus.Histogram
	// Of callers:
	expired, forgotten, refused atomic.Uint64
	answers                     [caller.Kinds]atomic.Uint64
	replies                     [caller.ToldKinds]atomic.Uint64
	tally                       tally.RouteCount
}

func (c *counters) acked() uint64 { return c.settled[supervisor.AckMessage].Load() + c.fallback.Load() }
func (c *counters) retried() uint64 {
	return c.settled[supervisor.RetryLater].Load() + c.kept.Load()
}
func (c *counters) deadLetters() uint64 { return c.settled[supervisor.DeadLetter].Load() }

type sourceCounters struct {
	delivered atomic.Uint64
	rebuilds  atomic.Uint64
	late      atomic.Uint64 // arrived after their AckWait
	strays    atomic.Uint64 // messages that no route here wants
	tally     tally.DurableCount
}

var reasons = [...]string{
	supervisor.ReasonExhausted, supervisor.ReasonDead, supervisor.ReasonExpired, supervisor.ReasonGaveUp, "crash",
}

func (c *counters) dead(reason string) {
	for i, r := range reasons {
		if r == reason {
			c.letters[i].Add(1)
		}
	}
}

// ended counts what becomes of a message for good, but for those that are done or dead, which others count.
func (c *counters) ended(o supervisor.Outcome) {
	switch {
	case o.Action != supervisor.DropMessage:
	case o.Err == caller.ErrExpired:
		c.tally.Ended(tally.Expired)
	case errors.Is(o.Err, ErrForgotten):
		c.tally.Ended(tally.Forgotten)
	default:
		c.tally.Ended(tally.Dropped)
	}
}

// ends are the messages that ended, but for those of ended.
func (c *counters) ends() audit.Counts {
	n := audit.Counts{Done: c.settled[supervisor.AckMessage].Load(), Fallback: c.fallback.Load()}
	for i := range c.letters {
		n.Dead += c.letters[i].Load()
	}
	return n
}

func (c *counters) took(d time.Duration) { c.seconds.Observe(d.Seconds()) }

// metrics is the prometheus.Collector of a Relay.
type metrics struct {
	r       *Relay
	seconds *prometheus.HistogramVec
	ages    *prometheus.HistogramVec

	build, connected, deliveries, late, rebuilds, strays, orphans, oldest, verdicts, settlements, retries, aside, asideNow, catchUp, dead, notDead,
	keys, stash, stashBytes, running, stuck, window, panics, hangs, evicted, moves, up, state, ready, backlog, deadStored, oldestDead,
	holder, behind *prometheus.Desc
	limitPlaces, limitRate, limitRunning, limitWaiting *prometheus.Desc
	heldMessages, heldBytes, heldMost, unconfirmed, ackPending, expired, forgotten, refused, questions, replies, fallback,
	substitutes *prometheus.Desc
}

func newMetrics() *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("relay_"+name, help, labels, nil)
	}
	m := &metrics{
		seconds: histogram("handler_seconds", "How long attempts took.", prometheus.ExponentialBuckets(0.0001, 4, 10)),
		ages: histogram("message_age_seconds", "From the time when a message was published until it was through: done, dropped or dead-lettered.",
			prometheus.ExponentialBuckets(0.001, 4, 15)),
		build:        desc("build_info", "1; the labels say which relay this is.", "version", "go"),
		connected:    desc("nats_connected", "1 while the connection to NATS is up."),
		deliveries:   desc("deliveries_total", "Messages that arrived from JetStream.", "stream", "durable"),
		late:         desc("late_deliveries_total", "Messages that arrived after their ack wait and were not started; they come again.", "stream", "durable"),
		rebuilds:     desc("pull_rebuilds_total", "Times the watchdog pulled anew.", "stream", "durable"),
		strays:       desc("strays_total", "Messages that arrived where no route of this instance wants them; they go back, or are kept in the retry stream.", "stream", "durable"),
		orphans:      desc("orphaned_messages", "Messages that wait for routes which are not there, by where: retries or durable. Looked for at the start and hourly; see relay orphans ls.", "where"),
		unconfirmed:  desc("unconfirmed_settlements", "Acks and NAKs that the server has not confirmed yet.", "stream", "durable"),
		ackPending:   desc("ack_pending", "Deliveries of the durable that wait for their settlement, on all instances.", "stream", "durable"),
		verdicts:     desc("verdicts_total", "What handlers said of attempts; a panic or a hang says nothing.", "route", "verdict"),
		settlements:  desc("settlements_total", "How messages left their route.", "route", "how"),
		retries:      desc("retries_total", "Failed messages by where they wait: nak, parked or stash.", "route", "where"),
		aside:        desc("put_aside_total", "Messages of keys that wait, parked without an attempt because their durable fills.", "route"),
		oldest:       desc("oldest_message_age_seconds", "Age of the oldest message that waits for the route, by the time when it was published; 0 when none does.", "route"),
		dead:         desc("dead_letters_total", "Messages in the dead letters by reason.", "route", "reason"),
		notDead:      desc("dead_letter_failures_total", "Dead letters that could not be stored; the messages stay where they are.", "route"),
		keys:         desc("keys", "Keys by state.", "route", "state"),
		stash:        desc("stash_messages", "Messages held in memory because their key waits.", "route"),
		stashBytes:   desc("stash_bytes", "Their size.", "route"),
		running:      desc("handlers_running", "Attempts in flight.", "route"),
		stuck:        desc("handlers_stuck", "Handlers that ignored their timeout and have not returned.", "route"),
		window:       desc("window_messages", "Messages that wait for a free slot.", "route"),
		panics:       desc("handler_panics_total", "Attempts that ended in a panic.", "route"),
		hangs:        desc("handler_hangs_total", "Attempts that were abandoned.", "route"),
		asideNow:     desc("aside_messages", "Messages given back to their stream because something else waits, to be called back when that is over.", "route"),
		catchUp:      desc("catch_up_messages", "Messages that the durable had passed before the route wanted them, and that are not handed over to it yet; at most, as counted when it began.", "route"),
		evicted:      desc("stash_evictions_total", "Messages given back because the stash was full.", "route"),
		moves:        desc("state_changes_total", "Changes of state of keys and of the route, by the new state.", "route", "state"),
		up:           desc("route_up", "1 while messages of the route start as they come, or as a limit lets them: it flows, or is limited.", "route"),
		state:        desc("route_state", "1 for the state that the route is in, 0 for the others. With partitions: how many of them are in it.", "route", "state"),
		holder:       desc("route_holder", "1 while this instance has the route, 0 while it stands by; only of routes with instances: one. With partitions: how many of them it has.", "route"),
		behind:       desc("partitions_behind_messages", "Messages of the stream that the server has not copied into the stream of the route's partitions yet; only of the instance that has partition 0.", "route"),
		ready:        desc("ready", "1 while everything works; /readyz says what does not."),
		backlog:      desc("backlog_messages", "Messages that wait for the route, on all instances: in its stream and not delivered, outstanding (delivered and not settled), parked in the retry stream. Routes that share a durable share the first two.", "route", "where"),
		deadStored:   desc("dlq_messages", "Dead letters that are stored, of all instances; those of routes that are not configured have an empty route.", "route"),
		oldestDead:   desc("dlq_oldest_age_seconds", "Age of the oldest dead letter; 0 without one."),
		heldMessages: desc("held_messages", "Messages in memory: from their arrival until the server has confirmed their settlement.", "route"),
		heldBytes:    desc("held_bytes", "Their size, but for those in handlers.", "route"),
		expired:      desc("expired_total", "Messages whose deadline was over before they started; they were not.", "route"),
		forgotten:    desc("forgotten_total", "Messages that their callers did not want any more, before they started or while they ran.", "route"),
		questions:    desc("questions_total", "Callers asked before an attempt whether the message is still wanted, by answer; again: it said nothing, and is asked once more.", "route", "answer"),
		replies:      desc("replies_total", "Callers told what became of their message, by result: delivered, nobody (was there), failed, sent (once, and not known what became of it).", "route", "result"),
		refused:      desc("caller_headers_refused_total", "Headers of callers that did not count: not permitted, malformed, or given more than once.", "route"),
		fallback:     desc("fallback_attempts_total", "Attempts of the route's fallback, by result: done or failed.", "route", "result"),
		substitutes:  desc("fallback_running", "Messages that the route's fallback has now.", "route"),
		heldMost:     desc("held_bytes_limit", "With so many bytes no more messages are pulled.", "route"),
		limitPlaces:  desc("limit_concurrency", "How many handlers a limit lets run at once on this instance; 0: no bound.", "limit"),
		limitRate:    desc("limit_rate", "How many attempts a limit lets start in a second on this instance; 0: no bound.", "limit"),
		limitRunning: desc("limit_running", "Handlers that run under a limit on this instance.", "limit", "route"),
		limitWaiting: desc("limit_waiting_messages", "Messages that wait for room in a limit on this instance.", "limit", "route"),
	}
	return m
}

// of has a route counted, from what was counted of it before.
func (m *metrics) of(rt *route) {
	if rt.count.seconds != nil {
		return
	}
	rt.count.seconds = m.seconds.WithLabelValues(rt.name()).(prometheus.Histogram)
	rt.count.ages = m.ages.WithLabelValues(rt.name()).(prometheus.Histogram)
}

// forget takes out a route that is there no more.
func (m *metrics) forget(route string) {
	m.r.ended.mu.Lock()
	delete(m.r.ended.by, route)
	m.r.ended.mu.Unlock()
	m.seconds.DeleteLabelValues(route)
	m.ages.DeleteLabelValues(route)
}

// ended are the counters of parts that a route had, with a name of their own: what a route counted does not get less while it is there.
type ended struct {
	mu sync.Mutex // held while the routes change, too
	by map[string][]*counters
}

// counting are the routes, and what was counted of them beside that.
func (r *Relay) counting() ([]*route, map[string][]*counters) {
	r.ended.mu.Lock()
	defer r.ended.mu.Unlock()
	return r.all(), maps.Clone(r.ended.by)
}

// setRoutes has these be the routes. Those that end are parts of others, or are forgotten later.
func (r *Relay) setRoutes(list, end []*route) {
	e := &r.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rt := range end {
		if e.by == nil {
			e.by = make(map[string][]*counters)
		}
		e.by[rt.name()] = append(slices.Clip(e.by[rt.name()]), rt.count)
	}
	r.routes.Store(&list)
}

// histogram has the buckets of every Prometheus, and native ones beside them for those that ask for these.
func histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "relay_" + name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, []string{"route"})
}

// Collector gives the metrics of all routes; register it with a prometheus.Registerer.
func (r *Relay) Collector() prometheus.Collector { return r.metrics }

// Describe implements prometheus.Collector. What it collects now is described, and what it begins to collect later.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(m, ch)
	tally.Describe(ch)
	upkeep.Describe(ch)
}
