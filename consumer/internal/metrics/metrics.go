// Package metrics exports what an instance knows of itself to Prometheus: each metric's name, labels and help. Whoever handles messages counts in a
// [RouteCount] and a [DurableCount], without a lock. All the rest the [Collector] asks for at each scrape, as a [Snapshot] of plain values. It adds up
// what has the same name: the parts of a route, and what parts counted that ended. So a counter does not go back when a route is changed or divided.
package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a [Collector] collects.
type Config struct {
	// Snapshot is called at each scrape.
	Snapshot func() Snapshot
	// Collect sends metrics of others with these. Describe sends what Collect may send later.
	Collect  []func(chan<- prometheus.Metric)
	Describe []func(chan<- *prometheus.Desc)
	// Answers and Replies are the names of RouteCount.Answers and RouteCount.Replies.
	Answers [Answers]string
	Replies [Replies]string
}

// Collector is the prometheus.Collector of an instance. Make it with [New].
type Collector struct {
	cfg     Config
	seconds *prometheus.HistogramVec
	ages    *prometheus.HistogramVec
	own     []*prometheus.Desc // all but these two

	mu    sync.Mutex // held while the routes change, too
	ended map[string][]*RouteCount

	build, connected, deliveries, late, rebuilds, strays, orphans, oldest, verdicts, settlements, retries, aside, asideNow, catchUp, dead, notDead,
	keys, stash, stashBytes, running, stuck, window, panics, hangs, evicted, moves, up, state, ready, backlog, deadStored, oldestDead,
	holder, behind *prometheus.Desc
	limitPlaces, limitRate, limitRunning, limitWaiting *prometheus.Desc
	heldMessages, heldBytes, heldMost, unconfirmed, ackPending, expired, forgotten, refused, questions, replies, fallback,
	substitutes, archived, notArchived *prometheus.Desc
}

// New has counted nothing yet.
func New(cfg Config) *Collector {
	var own []*prometheus.Desc
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc("relay_"+name, help, labels, nil)
		own = append(own, d)
		return d
	}
	c := &Collector{
		cfg:     cfg,
		seconds: histogram("handler_seconds", "How long attempts took.", prometheus.ExponentialBuckets(0.0001, 4, 10)),
		ages: histogram("message_age_seconds", "Time from the publishing of a message until it was done, dropped or dead-lettered.",
			prometheus.ExponentialBuckets(0.001, 4, 15)),
		build:        desc("build_info", "1; the labels say which relay this is.", "version", "go"),
		connected:    desc("nats_connected", "1 while the connection to NATS is up."),
		deliveries:   desc("deliveries_total", "Messages that arrived from JetStream.", "stream", "durable"),
		late:         desc("late_deliveries_total", "Messages that arrived after their ack wait. They are not started; the server redelivers them.", "stream", "durable"),
		rebuilds:     desc("pull_rebuilds_total", "Times that messages waited, none was delivered, and the watchdog pulled again.", "stream", "durable"),
		strays:       desc("strays_total", "Messages that no route of this instance wants. They are given back, or kept in the retry stream.", "stream", "durable"),
		orphans:      desc("orphaned_messages", "Messages that wait for routes that do not exist, by where: retries or durable. Counted at the start and every hour; see relay orphans ls.", "where"),
		unconfirmed:  desc("unconfirmed_settlements", "Acks and NAKs that the server has not confirmed yet.", "stream", "durable"),
		ackPending:   desc("ack_pending", "Deliveries of the durable that wait for their settlement, on all instances.", "stream", "durable"),
		verdicts:     desc("verdicts_total", "Verdicts of handlers. An attempt that panics or hangs has none.", "route", "verdict"),
		settlements:  desc("settlements_total", "Messages that left their route, by how.", "route", "how"),
		retries:      desc("retries_total", "Failed messages by where they wait: nak, parked or stash.", "route", "where"),
		aside:        desc("put_aside_total", "Messages that were parked without an attempt, because their key waits and many messages of the durable are outstanding.", "route"),
		oldest:       desc("oldest_message_age_seconds", "Age of the oldest message that waits for the route, by the time when it was published; 0 when none does.", "route"),
		dead:         desc("dead_letters_total", "Dead letters that this instance stored, by reason.", "route", "reason"),
		notDead:      desc("dead_letter_failures_total", "Times that a dead letter could not be stored. Its message stays in its stream.", "route"),
		keys:         desc("keys", "Keys by state.", "route", "state"),
		stash:        desc("stash_messages", "Messages held in memory because their key waits.", "route"),
		stashBytes:   desc("stash_bytes", "Bytes of the messages that are held in memory because their key waits.", "route"),
		running:      desc("handlers_running", "Attempts that run now.", "route"),
		stuck:        desc("handlers_stuck", "Handlers that ignored their timeout and have not returned.", "route"),
		window:       desc("window_messages", "Messages that wait for a free slot.", "route"),
		panics:       desc("handler_panics_total", "Attempts that ended in a panic.", "route"),
		hangs:        desc("handler_hangs_total", "Attempts that were given up because the handler ignored its timeout.", "route"),
		asideNow:     desc("aside_messages", "Messages that were given back to their stream while their key, their route or a limit lets none start. relay calls them back when that is over.", "route"),
		catchUp:      desc("catch_up_messages", "Messages that the durable had passed before the route had their subjects, and that the route has not got yet. An upper bound, counted at the beginning.", "route"),
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
		heldBytes:    desc("held_bytes", "Bytes of the messages in memory, without those in handlers.", "route"),
		expired:      desc("expired_total", "Messages that were not started because their deadline was over.", "route"),
		forgotten:    desc("forgotten_total", "Messages that their callers no longer wanted, before they started or while they ran.", "route"),
		questions:    desc("questions_total", "Questions to callers, before an attempt, whether the message is still wanted, by answer. again: no answer; the caller is asked once more.", "route", "answer"),
		replies:      desc("replies_total", "Replies to callers about what became of their messages, by result: delivered, nobody (no caller was there), failed, sent (whether it arrived is not known).", "route", "result"),
		refused:      desc("caller_headers_refused_total", "Headers of callers that were ignored: not permitted, malformed, or given more than once.", "route"),
		fallback:     desc("fallback_attempts_total", "Attempts of the route's fallback, by result: done or failed.", "route", "result"),
		substitutes:  desc("fallback_running", "Messages that the fallback of the route handles now.", "route"),
		heldMost:     desc("held_bytes_limit", "Bytes in memory at which the route pulls no more messages.", "route"),
		limitPlaces:  desc("limit_concurrency", "How many handlers a limit lets run at once on this instance; 0: no bound.", "limit"),
		limitRate:    desc("limit_rate", "How many attempts a limit lets start in a second on this instance; 0: no bound.", "limit"),
		limitRunning: desc("limit_running", "Handlers that run under a limit on this instance.", "limit", "route"),
		limitWaiting: desc("limit_waiting_messages", "Messages that wait for room in a limit on this instance.", "limit", "route"),
		archived:     desc("archive_records_total", "Records of what became of messages that this instance wrote to the archive; see archive.outcomes."),
		notArchived:  desc("archive_dropped_total", "Records that were left out of the archive: the stream could not be written, and its room in memory was full."),
	}
	c.own = own
	return c
}

// Enter has a route counted, from what was counted of it before.
func (c *Collector) Enter(route string, count *RouteCount) {
	if count.seconds != nil {
		return
	}
	count.seconds = c.seconds.WithLabelValues(route).(prometheus.Histogram)
	count.ages = c.ages.WithLabelValues(route).(prometheus.Histogram)
}

// Change has change be made, which ends routes, or parts of routes. What they counted goes on to count for their names: what a route counted does not get
// less while it is there.
func (c *Collector) Change(ends map[string][]*RouteCount, change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, counts := range ends {
		if c.ended == nil {
			c.ended = make(map[string][]*RouteCount)
		}
		c.ended[name] = append(slices.Clip(c.ended[name]), counts...)
	}
	change()
}

// Ended is what was counted of routes that ended, by their names. Look sees the routes that there are then: no change is made meanwhile.
func (c *Collector) Ended(look func()) map[string][]*RouteCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	look()
	return maps.Clone(c.ended)
}

// Forget takes out a route that is there no more.
func (c *Collector) Forget(route string) {
	c.mu.Lock()
	delete(c.ended, route)
	c.mu.Unlock()
	c.seconds.DeleteLabelValues(route)
	c.ages.DeleteLabelValues(route)
}

// histogram has the buckets of every Prometheus, and native ones beside them for those that ask for these.
func histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "relay_" + name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, []string{"route"})
}

// Describe implements prometheus.Collector. What it collects now is described, and what it begins to collect later.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, ch)
	for _, d := range c.own {
		ch <- d
	}
	for _, describe := range c.cfg.Describe {
		describe(ch)
	}
}
