package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/dlq"
)

// replays are the replay jobs that are remembered, by state. Whoever runs one writes its record; all instances count the same.
type replays struct {
	states    atomic.Pointer[map[dlq.JobState]int]
	discarded atomic.Pointer[[]dlq.Job] // the records of who took messages out of their retries
}

var replayStates = []dlq.JobState{dlq.JobRunning, dlq.JobStopped, dlq.JobCancelled, dlq.JobDone, dlq.JobNewer}

var replaysDesc = prometheus.NewDesc("relay_replays", "Replay jobs of the last thirty days by state: running, stopped, cancelled, done, or of a newer version.", []string{"state"}, nil)

// watch counts them now and then, until ctx is done.
func (p *replays) watch(ctx context.Context, r *Relay) {
	var seen uint64 // last sequence of the bucket when it was counted
	for {
		began := time.Now()
		p.count(ctx, r, &seen)
		pause(ctx, max(countEvery, 100*time.Since(began)))
		if ctx.Err() != nil {
			return
		}
	}
}

// count reads the bucket when something was written to it since.
func (p *replays) count(ctx context.Context, r *Relay, seen *uint64) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	stream, err := r.js.Stream(ctx, dlq.JobsStream(r.cfg.Service, r.cfg.Replicas).Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		p.states.Store(&map[dlq.JobState]int{}) // the first job makes it
		return
	}
	if err != nil || p.states.Load() != nil && *seen == stream.CachedInfo().State.LastSeq {
		return
	}
	jobs, err := dlq.AttachJobs(ctx, r.js, r.cfg.Service)
	if err != nil {
		return
	}
	list, err := jobs.List(ctx)
	if err != nil {
		return
	}
	states := map[dlq.JobState]int{}
	var discarded []dlq.Job
	for _, j := range list {
		switch j.Kind {
		case "":
			states[j.State]++
		case dlq.RetriesDiscard:
			discarded = append(discarded, j)
		}
	}
	p.discarded.Store(&discarded)
	p.states.Store(&states)
	*seen = stream.CachedInfo().State.LastSeq
}

func (p *replays) collect(ch chan<- prometheus.Metric) {
	states := p.states.Load()
	if states == nil {
		return
	}
	for _, s := range replayStates {
		ch <- prometheus.MustNewConstMetric(replaysDesc, prometheus.GaugeValue, float64((*states)[s]), string(s))
	}
}
