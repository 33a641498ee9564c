// Package replayed tells jobs that replayed messages how the first attempt of each of them ended. Verdicts are gathered, and written together.
// A kill loses those of the last moments, and the job finds out; see [dlq.Run].
package replayed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// tellEvery is how long verdicts are gathered before they are written to their jobs, as one value each.
	tellEvery = 100 * time.Millisecond
	// tellAtOnce bounds such a value: at most 400 bytes a verdict stay far below any max_payload.
	tellAtOnce = 500
	// callTimeout bounds one try to write.
	callTimeout = 5 * time.Second
	// maxUntold bounds the memory while they cannot be written.
	maxUntold = 100_000
)

// Config says where the jobs are.
type Config struct {
	JetStream jetstream.JetStream
	Service   string
	Log       *slog.Logger
}

// Verdicts are on their way to their jobs.
type Verdicts struct {
	cfg   Config
	kick  chan struct{}
	write sync.Mutex // one flush at a time

	mu      sync.Mutex
	pending map[string][]dlq.Verdict
	n       int
	lost    int
}

// New asks nobody.
func New(cfg Config) *Verdicts {
	return &Verdicts{cfg: cfg, kick: make(chan struct{}, 1), pending: make(map[string][]dlq.Verdict)}
}

// Add has the job told, soon.
func (v *Verdicts) Add(job string, verdict dlq.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.n >= maxUntold {
		v.lost++
		return
	}
	v.n++
	v.pending[job] = append(v.pending[job], verdict)
	select {
	case v.kick <- struct{}{}:
	default:
	}
}

// Run writes what has gathered until ctx is done. What comes later is for [Verdicts.Flush].
func (v *Verdicts) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.kick:
		}
		transient.Pause(ctx, tellEvery)
		v.Flush(ctx)
	}
}

// Flush writes what has gathered so far, and blocks until ctx is done at most.
func (v *Verdicts) Flush(ctx context.Context) {
	v.write.Lock()
	defer v.write.Unlock()
	v.mu.Lock()
	pending, lost := v.pending, v.lost
	v.pending, v.n, v.lost = make(map[string][]dlq.Verdict), 0, 0
	v.mu.Unlock()
	if len(pending) == 0 {
		return
	}
	log := v.cfg.Log
	if lost > 0 {
		log.Warn("verdicts of replayed messages are lost: too many could not be written", "count", lost)
	}
	for job, list := range pending {
		for len(list) > 0 {
			n := min(len(list), tellAtOnce)
			err := v.store(ctx, job, list[:n])
			if ctx.Err() != nil && err != nil {
				v.putBack(job, list)
				break
			}
			if err != nil {
				log.Warn("verdicts of replayed messages are lost", "job", job, "count", len(list), "error", err)
				break
			}
			list = list[n:]
		}
	}
}

// putBack keeps verdicts for a later flush. Those that were stored all the same are told twice, which has no effect.
func (v *Verdicts) putBack(job string, list []dlq.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pending[job] = append(v.pending[job], list...)
	v.n += len(list)
}

// GiveUp is the end: what is not written by now never will be.
func (v *Verdicts) GiveUp() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for job, list := range v.pending {
		v.cfg.Log.Warn("verdicts of replayed messages are lost: relay ends", "job", job, "count", len(list))
	}
}

// store tries for as long as a server takes to come back.
func (v *Verdicts) store(ctx context.Context, job string, list []dlq.Verdict) error {
	unique := nuid.Next()
	for tries := 0; ; tries++ {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		jobs, err := dlq.AttachJobs(call, v.cfg.JetStream, v.cfg.Service)
		if err == nil {
			err = jobs.Tell(call, job, unique, list)
		}
		cancel()
		if err == nil || ctx.Err() != nil || tries >= 30 || errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, dlq.ErrNoJob) {
			return err
		}
		transient.Pause(ctx, time.Second)
	}
}
