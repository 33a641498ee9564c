package dlq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// take makes this the one that runs the job.
func (r *Run) take(ctx context.Context) error {
	job := *r.Job
	for silent := 0; job.State == JobRunning && job.Runner != "" && job.Runner != r.Runner; {
		// The other runner may have crashed. Its clock may differ from ours, so the job is free when its record no longer changes.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.beat):
		}
		now, err := r.Jobs.Get(ctx, job.ID)
		if err != nil {
			return err
		}
		if now.revision != job.revision {
			if silent = 0; now.State == JobRunning {
				return fmt.Errorf("%w: %s", ErrJobTaken, now.Runner)
			}
		}
		if silent++; silent >= beatsLost {
			break
		}
		job = now
	}
	r.resumed = r.Job.State != JobRunning || r.Job.Runner != r.Runner
	left := r.Plan
	// Entries that are gone were handed over by the earlier run, or taken by somebody else. A run that stopped has recorded how many
	// it handed over; a run that crashed has not recorded its last moments.
	if away := max(0, job.Total-left.Total-left.Refused); job.State == JobRunning {
		job.Handed = max(0, away-job.Gone)
	} else {
		job.Handed = min(job.Handed, away)
		job.Gone = away - job.Handed
	}
	job.State, job.Why, job.Runner = JobRunning, "", r.Runner
	job.Refused, job.Refusals, job.Reasons, job.WaitsFor = left.Refused, left.Refusals, maps.Clone(left.Reasons), nil
	if err := r.Jobs.update(ctx, &job); err != nil {
		if transient.Raced(err) {
			return ErrJobTaken
		}
		return classify(err)
	}
	r.spec, r.job, *r.Job = job, job, job
	return nil
}

// heartbeat writes the job, and stops it when somebody else changed it.
func (r *Run) heartbeat(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(r.beat)
	defer tick.Stop()
	show := time.NewTicker(100 * time.Millisecond)
	defer show.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-show.C:
			r.show()
			continue
		case <-tick.C:
		}
		job := r.snapshot().Job
		call, cancel := context.WithTimeout(ctx, r.Store.timeout)
		err := r.write(call, &job)
		cancel()
		switch {
		case errors.Is(err, ErrJobTaken), errors.Is(err, ErrJobCancelled), errors.Is(err, ErrNoJob):
			stop(err)
			return
		}
	}
}

// write stores the job over what this run wrote last. Another answer than a refusal proves nothing, so what is there is looked
// at: after a lost answer it is this run's own.
func (r *Run) write(ctx context.Context, job *Job) error {
	r.mu.Lock()
	job.revision = r.job.revision
	r.mu.Unlock()
	err := r.Jobs.update(ctx, job)
	if transient.Raced(err) {
		now, get := r.Jobs.Get(ctx, job.ID)
		switch {
		case get != nil:
			return get
		case now.State == JobCancelled && job.State == JobRunning:
			r.setRevision(now.revision)
			return fmt.Errorf("%w (%s)", ErrJobCancelled, now.Why)
		case now.Runner != r.Runner:
			return fmt.Errorf("%w: %s", ErrJobTaken, now.Runner)
		}
		job.revision = now.revision
		err = r.Jobs.update(ctx, job)
	}
	if err == nil {
		r.setRevision(job.revision)
	}
	return err
}

func (r *Run) setRevision(rev uint64) {
	r.mu.Lock()
	r.job.revision = rev
	r.mu.Unlock()
}

// finish writes how it ended, and returns that.
func (r *Run) finish(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.Store.timeout)
	defer cancel()
	r.mu.Lock()
	r.waiting, r.job.WaitsFor = false, nil
	switch {
	case err == nil:
		r.job.State, r.job.Why = JobDone, ""
	case errors.Is(err, ErrJobCancelled):
		r.job.State = JobCancelled
	default:
		r.job.State, r.job.Why = JobStopped, err.Error()
		if errors.Is(err, context.Canceled) {
			r.job.Why = "interrupted"
		}
		if errors.Is(err, ErrTooManyFailures) {
			// A resumed job begins with the second stage: in the first, of one message, it might meet the same bad message for ever.
			r.job.Stage = min(max(r.job.Stage, 1), len(stageSizes)-1)
		}
	}
	job := r.job
	r.mu.Unlock()
	if !errors.Is(err, ErrJobTaken) && !errors.Is(err, ErrNoJob) {
		if errors.Is(err, ErrJobCancelled) {
			if now, get := r.Jobs.Get(ctx, job.ID); get == nil {
				job.Why = now.Why
			}
		}
		if failed := r.write(ctx, &job); failed != nil && err == nil {
			err = fmt.Errorf("everything is handed over, but the record of the job could not be written: %w", failed)
		}
	}
	*r.Job = job
	r.show()
	if err != nil && !errors.Is(err, ErrJobCancelled) && !errors.Is(err, ErrJobTaken) {
		return &StoppedError{job.ID, err}
	}
	return err
}
