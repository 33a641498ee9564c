package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

const (
	// tellEvery is how long verdicts are gathered before they are written to their jobs, as one value each.
	tellEvery = 100 * time.Millisecond
	// tellAtOnce bounds such a value: at most 400 bytes a verdict stay far below any max_payload.
	tellAtOnce = 500
	// maxUntold bounds the memory while they cannot be written.
	maxUntold = 100_000
)

// tellings are the first verdicts of replayed messages on their way to the jobs that replayed them. A kill loses those of the
// last moments, and the job finds out; see [dlq.Run].
type tellings struct {
	relay *Relay
	kick  chan struct{}
	write sync.Mutex // one flush at a time

	mu      sync.Mutex
	pending map[string][]dlq.Verdict
	n       int
	lost    int
}

func newTellings(r *Relay) *tellings {
	return &tellings{relay: r, kick: make(chan struct{}, 1), pending: make(map[string][]dlq.Verdict)}
}

// told is the end of an attempt: of a replayed message's first one, its job hears.
func (m *message) told(ctx context.Context, number int, v supervisor.Verdict) {
	if m.origin == nil || m.origin.Job == "" || number > 1 {
		return
	}
	switch v.Kind {
	case supervisor.Ack, supervisor.Drop:
		m.tell(true, nil)
	case supervisor.Dead:
		m.tell(false, v.Err)
	case supervisor.Retry:
		// A run that was interrupted says nothing of the message, and what never began neither.
		if !v.NotStarted && !errors.Is(ctx.Err(), context.Canceled) {
			m.tell(false, v.Err)
		}
	}
}

// toldBySettlement is for attempts that gave no verdict: panics and hangs, and keys that gave up.
func (m *message) toldBySettlement(o supervisor.Outcome) {
	if m.origin != nil && m.origin.Job != "" && o.Attempts <= 1 &&
		(o.Action == supervisor.RetryLater || o.Action == supervisor.DeadLetter) {
		m.tell(false, o.Err)
	}
}

func (m *message) tell(ok bool, err error) {
	v := dlq.Verdict{Message: dlq.MessageToken(*m.origin), OK: ok}
	if !ok {
		v.Route, v.Error = m.route.name(), retry.CleanText(errorText(err), 256)
	}
	m.route.relay.tellings.add(m, v)
}

func (t *tellings) add(m *message, v dlq.Verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.hasTold {
		return
	}
	m.hasTold = true
	if t.n >= maxUntold {
		t.lost++
		return
	}
	t.n++
	t.pending[m.origin.Job] = append(t.pending[m.origin.Job], v)
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// run writes what has gathered until ctx is done. What comes later is for [tellings.flush].
func (t *tellings) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.kick:
		}
		away.Pause(ctx, tellEvery)
		t.flush(ctx)
	}
}

// flush writes what has gathered so far.
func (t *tellings) flush(ctx context.Context) {
	t.write.Lock()
	defer t.write.Unlock()
	t.mu.Lock()
	pending, lost := t.pending, t.lost
	t.pending, t.n, t.lost = make(map[string][]dlq.Verdict), 0, 0
	t.mu.Unlock()
	if len(pending) == 0 {
		return
	}
	log := t.relay.log
	if lost > 0 {
		log.Warn("verdicts of replayed messages are lost: too many could not be written", "count", lost)
	}
	for job, list := range pending {
		for len(list) > 0 {
			n := min(len(list), tellAtOnce)
			err := t.store(ctx, job, list[:n])
			if ctx.Err() != nil && err != nil {
				t.putBack(job, list)
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
func (t *tellings) putBack(job string, list []dlq.Verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending[job] = append(t.pending[job], list...)
	t.n += len(list)
}

// giveUp is the end: what is not written by now never will be.
func (t *tellings) giveUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for job, list := range t.pending {
		t.relay.log.Warn("verdicts of replayed messages are lost: relay ends", "job", job, "count", len(list))
	}
}

// store tries for as long as a server takes to come back.
func (t *tellings) store(ctx context.Context, job string, list []dlq.Verdict) error {
	unique := nuid.Next()
	for tries := 0; ; tries++ {
		call, cancel := context.WithTimeout(ctx, settleTimeout)
		jobs, err := dlq.AttachJobs(call, t.relay.js, t.relay.cfg.Service)
		if err == nil {
			err = jobs.Tell(call, job, unique, list)
		}
		cancel()
		if err == nil || ctx.Err() != nil || tries >= 30 || errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, dlq.ErrNoJob) {
			return err
		}
		away.Pause(ctx, time.Second)
	}
}
