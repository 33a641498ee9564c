package dlq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// begin reads the verdicts there are, and goes on reading.
func (r *Run) begin(beside context.Context, others *sync.WaitGroup, stop context.CancelCauseFunc) error {
	if !r.spec.Waits() {
		return nil
	}
	known := make(chan struct{})
	failed := make(chan error, 1)
	others.Go(func() {
		err := r.Jobs.follow(beside, r.spec.ID, func(v Verdict) { r.verdict(v, stop) }, func() {
			r.mu.Lock()
			// The operator knew of the failures so far when resuming the job, and accepted them.
			r.job.Before, r.judging = r.verdicts, true
			r.mu.Unlock()
			close(known)
		})
		if err != nil {
			failed <- err
			stop(err)
		}
	})
	select {
	case <-known:
		return nil
	case err := <-failed:
		return err
	}
}

func (r *Run) verdict(v Verdict, stop context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := hash(v.Message)
	if _, known := r.seen[h]; known {
		return
	}
	r.seen[h] = struct{}{}
	r.verdicts.count(v)
	if err := r.tooMany(minSample); err != nil && r.judging {
		stop(err)
	}
	r.notify()
}

// tooMany is the threshold, of at least sample verdicts.
func (r *Run) tooMany(sample int) error {
	n := r.verdicts.N() - r.job.Before.N()
	failed := r.verdicts.Failed - r.job.Before.Failed
	if r.spec.StopAfter <= 0 || n == 0 || float64(failed)*100 <= r.spec.StopAfter*float64(max(n, sample)) {
		return nil
	}
	return fmt.Errorf("%w: %d of %d replayed messages failed at their first attempt (the limit is %g %%)", ErrTooManyFailures, failed, n, r.spec.StopAfter)
}

// await waits until at most open messages of this job have no verdict.
func (r *Run) await(ctx context.Context, open int) error {
	stalled := r.stall
	for {
		r.mu.Lock()
		left := r.job.Handed - r.verdicts.N() - r.unseen
		changed := r.changed
		r.waiting = left > open && open == 0
		r.mu.Unlock()
		if left <= open || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		timer := time.NewTimer(stalled)
		select {
		case <-ctx.Done():
		case <-changed:
			stalled = r.stall
		case <-timer.C:
			if err := r.findLost(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrNoStream) {
				r.Store.log.Debug("replay: the retry stream cannot be looked at", "error", err)
			}
			stalled = min(2*stalled, 30*time.Second)
		}
		timer.Stop()
	}
}

// findLost counts the messages that are handled though their verdicts never came. What is in the retry stream is not
// handled; verdicts come within a moment of it, and were not seen for longer than that.
func (r *Run) findLost(ctx context.Context) error {
	r.mu.Lock()
	before := r.verdicts.N()
	r.mu.Unlock()
	stream, err := r.Store.js.Stream(ctx, retryName(r.Store.service))
	if err != nil {
		return classify(err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(r.Store.service+".due.>"))
	if err != nil {
		return classify(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verdicts.N() != before {
		return nil
	}
	waiting := 0
	for subj := range info.State.Subjects {
		token := subj[strings.LastIndexByte(subj, '.')+1:]
		if _, known := r.seen[hash(token)]; !known {
			waiting++ // perhaps another job's: then this one waits a little longer
		}
	}
	if lost := r.job.Handed - r.verdicts.N() - waiting; lost > r.unseen {
		r.unseen = lost
		r.notify()
	}
	return nil
}
