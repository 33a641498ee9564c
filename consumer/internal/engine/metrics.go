package engine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/orphans"
)

func newMetrics(r *Engine) *metrics.Collector {
	var answers [caller.Kinds]string
	for i := range answers {
		answers[i] = caller.Counted(i).String()
	}
	var replies [caller.ToldKinds]string
	for i := range replies {
		replies[i] = caller.Told(i).String()
	}
	return metrics.New(metrics.Config{
		Snapshot: func() metrics.Snapshot { return snapshot(r) }, Answers: answers, Replies: replies,
		Collect:  []func(chan<- prometheus.Metric){r.Upkeep.Collect, r.Reports.Collect, r.tallies.Collect},
		Describe: []func(chan<- *prometheus.Desc){tally.Describe, upkeep.Describe},
	})
}

// Collector gives the metrics of all routes; register it with a prometheus.Registerer.
func (r *Engine) Collector() prometheus.Collector { return r.Routes.metrics }

// snapshot is what a scrape sees.
func snapshot(r *Engine) metrics.Snapshot {
	s := metrics.Snapshot{
		Connected: r.Conn.IsConnected(), Ready: r.Ready() == nil, Orphans: map[string]int{orphans.Retries: 0, orphans.Durable: 0}, DeadLetters: r.Upkeep.Usage(),
	}
	for _, o := range r.Orphans.Found() {
		s.Orphans[o.Kind] += int(o.Messages) + o.Outstanding
	}
	for _, src := range r.Running.Sources() {
		d := metrics.Durable{Stream: src.Stream, Name: src.Name, Count: &src.Count.DurableCount, Unconfirmed: src.Session.Stats().Unconfirmed}
		if l := src.Looked(); l != nil {
			d.AckPending = &l.Outstanding
		}
		s.Durables = append(s.Durables, d)
	}
	for _, l := range r.Bounds.Book().Status() {
		running := make(map[string]int)
		for name, n := range l.Holders {
			running[r.Routes.calledName(name)] += n
		}
		s.Limits = append(s.Limits, metrics.Limit{Name: l.Name, Places: l.Bounds.Places, Rate: l.Bounds.Rate, Running: running})
	}
	if a := r.Archive; a != nil {
		s.Archive = &metrics.Archive{Stored: a.Stored(), Dropped: a.Dropped()}
	}
	routes, ended := r.Routes.counting()
	s.Ended = ended
	for _, rt := range routes {
		s.Routes = append(s.Routes, rt.Snapshot())
	}
	return s
}
