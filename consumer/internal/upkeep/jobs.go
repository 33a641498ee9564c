package upkeep

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/transient"
)

// jobs are the replay jobs that are remembered, by state. Whoever runs one writes its record; all instances count the same.
type jobs struct {
	states   atomic.Pointer[map[dlq.JobState]int]
	operated atomic.Pointer[[]dlq.Job] // those of [dlq.Job.Operates]
}

var replayStates = []dlq.JobState{dlq.JobRunning, dlq.JobStopped, dlq.JobCancelled, dlq.JobDone, dlq.JobNewer}

var replaysDesc = prometheus.NewDesc("relay_replays", "Replay jobs of the last thirty days by state: running, stopped, cancelled, done, or of a newer version.", []string{"state"}, nil)

// jobsEvery is how often they are looked at, unless that takes long.
const jobsEvery = 15 * time.Second

// Operated are the records of what operators did with messages in the retry stream; known is false before the first look.
func (u *Upkeep) Operated() (list []dlq.Job, known bool) {
	if l := u.jobs.operated.Load(); l != nil {
		return *l, true
	}
	return nil, false
}

// WatchJobs counts the replay jobs now and then, until ctx is done.
func (u *Upkeep) WatchJobs(ctx context.Context) {
	var seen uint64 // last sequence of the bucket when it was counted
	for {
		began := time.Now()
		u.jobs.count(ctx, u.cfg, &seen)
		transient.Pause(ctx, max(jobsEvery, 100*time.Since(began)))
		if ctx.Err() != nil {
			return
		}
	}
}

// count reads the bucket when something was written to it since.
func (j *jobs) count(ctx context.Context, cfg Config, seen *uint64) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	stream, err := cfg.JS.Stream(ctx, dlq.JobsStream(cfg.Stores.Service, cfg.Stores.Replicas).Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		j.states.Store(&map[dlq.JobState]int{}) // the first job makes it
		return
	}
	if err != nil || j.states.Load() != nil && *seen == stream.CachedInfo().State.LastSeq {
		return
	}
	records, err := dlq.AttachJobs(ctx, cfg.JS, cfg.Stores.Service)
	if err != nil {
		return
	}
	list, err := records.List(ctx)
	if err != nil {
		return
	}
	states := map[dlq.JobState]int{}
	var operated []dlq.Job
	for _, of := range list {
		switch {
		case of.Kind == "":
			states[of.State]++
		case of.Operates():
			operated = append(operated, of)
		}
	}
	j.states.Store(&states)
	j.operated.Store(&operated)
	*seen = stream.CachedInfo().State.LastSeq
}

func (j *jobs) collect(ch chan<- prometheus.Metric) {
	states := j.states.Load()
	if states == nil {
		return
	}
	for _, s := range replayStates {
		ch <- prometheus.MustNewConstMetric(replaysDesc, prometheus.GaugeValue, float64((*states)[s]), string(s))
	}
}
