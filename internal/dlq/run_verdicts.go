package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	r.job.WaitsFor = nil // until the next look, if it finds them still
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
			err := r.findLost(ctx)
			if errors.Is(err, ErrNobody) {
				return err
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNoStream) {
				r.Store.log.Debug("replay: cannot read the retry stream", "error", err)
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
	waits := make(map[dueOf]int)
	waiting := 0
	r.mu.Lock()
	for subj := range info.State.Subjects {
		parts := strings.Split(strings.TrimPrefix(subj, r.Store.service+".due."), ".")
		if len(parts) != 3 {
			continue // not relay's
		}
		token := hash(parts[1] + "-" + parts[2])
		if _, known := r.seen[token]; known {
			continue
		}
		if _, own := r.tokens[token]; !own && r.sent == uint64(r.job.Handed) {
			continue // another job's: this run handed over all of its own
		}
		waiting++
		waits[dueOf{parts[0], parts[1]}]++
	}
	r.mu.Unlock()
	// The server is asked for at most so many durables.
	var unasked []WaitsFor
	nobody, where := 0, ""
	for d, n := range waits {
		if len(unasked) >= maxWaitsFor {
			break
		}
		t, err := r.Store.taker(ctx, d.route, d.stream)
		switch {
		case err != nil:
			return err
		case !t.there:
			nobody, where = nobody+n, fmt.Sprintf("route %s of stream %s", d.route, d.stream)
		case !t.asked:
			unasked = append(unasked, WaitsFor{Route: d.route, Stream: d.stream, Messages: n, Since: time.Now().UTC()})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verdicts.N() != before {
		return nil
	}
	since := make(map[dueOf]time.Time, len(unasked))
	for i, w := range unasked {
		d := dueOf{w.Route, w.Stream}
		if first, known := r.unasked[d]; known {
			unasked[i].Since = first
		}
		since[d] = unasked[i].Since
	}
	r.unasked = since
	slices.SortFunc(unasked, func(a, b WaitsFor) int {
		return cmp.Or(strings.Compare(a.Route, b.Route), strings.Compare(a.Stream, b.Stream))
	})
	r.job.WaitsFor = unasked
	open := r.job.Handed - r.verdicts.N() - r.unseen
	switch {
	case open <= waiting-nobody: // all that it waits for may be among those that somebody takes
		r.nobody = time.Time{}
	case nobody == 0:
		r.nobody = time.Time{}
	case r.nobody.IsZero():
		r.nobody = time.Now()
	case time.Since(r.nobody) > 4*r.stall:
		return fmt.Errorf("%w: %d messages are in the retry stream for %s, which never ran there or was removed (relay orphans ls says how to get them back)",
			ErrNobody, nobody, where)
	}
	if lost := r.job.Handed - r.verdicts.N() - waiting; lost > r.unseen {
		r.unseen = lost
		r.notify()
	}
	return nil
}

// dueOf is what a durable of the retry stream is for.
type dueOf struct{ route, stream string }

// maxWaitsFor bounds what the record of a job says of that.
const maxWaitsFor = 20
