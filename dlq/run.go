package dlq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/relaymq/relay/internal/failpoint"
)

// Run is a replay job under way.
//
// # Steps
//
// An entry is read from the stream's leader, published under a message id of origin and replay count, and removed once that
// is confirmed. Those of the next tenth of a second are read together, see [Store.getTogether]. Many are under way at once; one
// that shares its key with another waits until the other's hand-over is confirmed, so that a key keeps its order even when a
// publish has to be tried again.
//
// # Crashes
//
// Nothing but the entries themselves says what is left to do: whoever resumes a job lists them again. What a crash left
// between hand-over and removal is handed over again under the same message id, which the retry stream drops within its
// dedupe window of ten minutes, and removed then.
//
// # Verdicts
//
// Relays write the first verdict of each message to the job, see [Jobs]. When a relay is killed, those of its last moments are
// lost: a message that has no verdict and is no longer in the retry stream was handled, and is not waited for.
type Run struct {
	Store *Store
	Jobs  *Jobs
	Job   *Job  // from [Jobs.Create] or [Jobs.Get]
	Plan  *Plan // of what is left, from [Store.Plan]
	// Runner names who runs it.
	Runner string
	// Edited takes the place of the one entry's body unless it is nil.
	Edited []byte
	// Progress is called several times a second, and once at the end, from one goroutine at a time. It may be nil.
	Progress func(Progress)
	// StageDone is called at the end of each stage. It may be nil.
	StageDone func(Progress)
	// Refused is called for each entry that cannot be handed over. It may be nil.
	Refused func(Refusal)

	beat, stall time.Duration // for tests; zero: the defaults

	spec Job // what it is to do; nobody changes it after take

	telling  sync.Mutex // one call of Refused at a time
	mu       sync.Mutex
	changed  chan struct{} // closed at each change of what follows
	job      Job
	seen     map[uint64]struct{} // verdicts
	verdicts Tally
	unseen   int    // handled, but their verdicts are lost
	sent     uint64 // handed over by this run
	waiting  bool
	judging  bool // the verdicts of earlier runs are known
}

// Progress is how far a job is.
type Progress struct {
	Job
	Verdicts Tally
	// Lost verdicts: see [Run].
	Lost int
	// Waiting says that it waits for verdicts of the stage.
	Waiting bool
}

const (
	beatEvery = 500 * time.Millisecond // the job is written
	beatsLost = 4                      // silence after which another may take the job
	inFlight  = 1024                   // hand-overs and removals that are not confirmed yet
	readAhead = 32                     // entries that are prepared before their turn
	// maxTogether is how many entries are read together, and readFor how long before their turn, about.
	maxTogether = 500
	readFor     = 100 * time.Millisecond
	turnEvery   = 5 * time.Millisecond // at most: what this much time allows is handed over without a pause
	// maxOpen is how many messages without a verdict a job with a threshold has out: a threshold that could be seen only
	// when everything is handed over would protect nobody.
	maxOpen = 1000
	// minSample keeps a threshold from being passed by the first few verdicts of a stage.
	minSample = 20
)

// stageSizes are those of a staged job; what is left is the last stage.
var stageSizes = []int{1, 10, 100}

// StoppedError says that a job stopped by itself and can be resumed.
type StoppedError struct {
	Job string
	Err error
}

func (e *StoppedError) Error() string { return e.Err.Error() }
func (e *StoppedError) Unwrap() error { return e.Err }

// ErrTooManyFailures is why a job stopped whose threshold was passed.
var ErrTooManyFailures = errors.New("too many failures")

// Do runs the job until everything is handed over, and the verdicts are there if it waits for them. It returns
// [ErrJobCancelled], [ErrJobTaken], or a [*StoppedError] with what stopped it: [ErrTooManyFailures], the cause of ctx, or what
// the server said. In all those cases what is handed over is handled, and the rest is in the dead letters.
//
// When ctx ends, nothing new is handed over, and what is under way is completed, within a few seconds.
func (r *Run) Do(ctx context.Context) error {
	if r.beat == 0 {
		r.beat = beatEvery
	}
	if r.stall == 0 {
		r.stall = 4 * beatEvery
	}
	r.changed, r.seen = make(chan struct{}), make(map[uint64]struct{})
	if err := r.take(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The job is written, and verdicts are read, while what is under way ends.
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { r.heartbeat(beside, stop) })
	err := r.begin(beside, &others, stop)
	if err == nil {
		err = r.stages(ctx, stop)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	end()
	others.Wait()
	return r.finish(err)
}

// take makes this the one that runs the job.
func (r *Run) take(ctx context.Context) error {
	job := *r.Job
	for silent := 0; job.State == JobRunning && job.Runner != "" && job.Runner != r.Runner; {
		// It may have crashed. Its clock is not ours, so what counts is whether the record changes.
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
	left := r.Plan
	job.State, job.Why, job.Runner = JobRunning, "", r.Runner
	job.Handed = max(0, job.Total-job.Gone-left.Total-left.Refused)
	job.Refused, job.Refusals = left.Refused, left.Refusals
	if err := r.Jobs.update(ctx, &job); err != nil {
		if lostRace(err) {
			return ErrJobTaken
		}
		return classify(err)
	}
	r.spec, r.job, *r.Job = job, job, job
	return nil
}

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
			// What failed before the operator resumed it is known, and accepted.
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

// notify wakes those that wait for a change. The lock is held.
func (r *Run) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
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

// stages hands over everything.
func (r *Run) stages(ctx context.Context, stop context.CancelCauseFunc) error {
	limit := rate.NewLimiter(rate.Inf, 0)
	if r.spec.Rate > 0 {
		// A quarter of a second is made up for after a pause.
		limit = rate.NewLimiter(rate.Limit(r.spec.Rate), max(1, int(r.spec.Rate/4)))
	}
	items := r.Plan.items
	for stage := r.spec.Stage; len(items) > 0; stage++ {
		n := len(items)
		if r.spec.Staged && stage < len(stageSizes) {
			n = min(n, stageSizes[stage])
		}
		r.mu.Lock()
		r.job.Stage = stage
		r.mu.Unlock()
		if err := r.handOver(ctx, items[:n], limit, stop); err != nil {
			return err
		}
		items = items[n:]
		if r.spec.Waits() {
			if err := r.await(ctx, 0); err != nil {
				return err
			}
			r.mu.Lock()
			err := r.tooMany(1)
			r.mu.Unlock()
			if err != nil {
				return err
			}
		}
		if r.StageDone != nil {
			r.StageDone(r.snapshot())
		}
	}
	return nil
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

// flight is one hand-over under way.
type flight struct {
	item      item
	read      *stored       // the entry, when it was read with others; nil: it is to be read
	ready     chan struct{} // closed when it is prepared
	handOver  handOver
	err       error
	confirmed chan struct{} // closed when it is confirmed or given up
}

// handOver hands items over in their order, and returns when all of them are settled.
func (r *Run) handOver(ctx context.Context, items []item, limit *rate.Limiter, stop context.CancelCauseFunc) error {
	prepared := make(chan *flight, readAhead)
	var work sync.WaitGroup
	defer work.Wait()
	// What was begun is completed: each step has its own time-out.
	finish := context.WithoutCancel(ctx)
	work.Go(func() {
		defer close(prepared)
		r.feed(ctx, items, limit, func(f *flight) bool {
			select {
			case prepared <- f: // bounds what is read ahead
			case <-ctx.Done():
				return false
			}
			work.Go(func() {
				defer close(f.ready)
				f.handOver, f.err = r.prepare(ctx, f)
			})
			return true
		})
	})
	slots := make(chan struct{}, inFlight)
	last := make(map[uint64]*flight) // of each key
	var mu sync.Mutex                // of last
	for f := range prepared {
		<-f.ready
		if ctx.Err() != nil {
			continue // nothing new
		}
		if f.err != nil {
			if err := r.settle(f, f.err); err != nil {
				stop(err)
			}
			continue
		}
		mu.Lock()
		before := last[f.item.key]
		last[f.item.key] = f
		mu.Unlock()
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if before != nil {
				<-before.confirmed // which was begun earlier, so nobody waits for one that waits for a slot
			}
			err := context.Cause(ctx) // nothing new
			began := err == nil
			if began {
				failpoint.At("handing over")
				future, failed := r.Store.js.PublishMsgAsync(f.handOver.msg)
				err = r.confirm(ctx, finish, f, future, failed)
			}
			mu.Lock()
			if last[f.item.key] == f {
				delete(last, f.item.key)
			}
			mu.Unlock()
			close(f.confirmed)
			if !began {
				return
			}
			if err == nil {
				failpoint.At("handed over")
				err = r.remove(ctx, finish, f)
				failpoint.At("removed")
			}
			if err := r.settle(f, err); err != nil {
				stop(err)
			}
		})
	}
	work.Wait()
	return context.Cause(ctx)
}

// feed yields items when it is their turn, until yield returns false or ctx ends. Those of the next moment are read together.
func (r *Run) feed(ctx context.Context, items []item, limit *rate.Limiter, yield func(*flight) bool) {
	together, turn := maxTogether, 1
	if r.spec.Rate > 0 {
		// No entry is read much longer than that before its turn: somebody else may replay or discard it meanwhile.
		together = min(together, max(1, int(r.spec.Rate*readFor.Seconds())))
		// A timer for each entry would cost more than the entry.
		turn = max(1, int(r.spec.Rate*turnEvery.Seconds()))
	}
	granted := 0
	// The next ones are read while these are handed over.
	type batch struct {
		items []item
		read  map[uint64]stored
	}
	batches := make(chan batch)
	reading, done := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer done()
	reader.Go(func() {
		defer close(batches)
		for len(items) > 0 {
			n, size := 1, int(items[0].size)
			for n < min(together, len(items)) && size+int(items[n].size) <= pageBytes {
				size += int(items[n].size)
				n++
			}
			chunk := items[:n]
			items = items[n:]
			select {
			case batches <- batch{chunk, r.Store.getTogether(reading, chunk)}:
			case <-reading.Done():
				return
			}
		}
	})
	for chunk := range batches {
		for i, it := range chunk.items {
			if r.spec.StopAfter > 0 && r.await(ctx, maxOpen) != nil {
				return
			}
			if granted == 0 {
				granted = min(turn, len(chunk.items)-i)
				if limit.WaitN(ctx, granted) != nil {
					return
				}
			}
			granted--
			f := &flight{item: it, ready: make(chan struct{}), confirmed: make(chan struct{})}
			if m, ok := chunk.read[it.number]; ok {
				f.read = &m
			}
			if !yield(f) {
				return
			}
		}
	}
}

// stubborn repeats what the server could not do just now.
func (r *Run) stubborn(ctx, finish context.Context, f func(context.Context) error) error {
	pause := 100 * time.Millisecond
	for tries := 0; ; tries++ {
		err := f(finish)
		if err == nil || final(err) || tries >= maxTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// maxTries with their pauses take half a minute: longer than an election, or a restart of the server.
const maxTries = 16

// final tells whether trying again would give the same.
func final(err error) bool {
	var bad *EntryError
	return refusal(err) || errors.As(err, &bad) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrWrongStream)
}

// refusal tells whether an entry cannot be handed over while others can.
func refusal(err error) bool {
	var bad *EntryError
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrTooLarge) || errors.Is(err, ErrNoBody) || errors.As(err, &bad) && errors.Is(err, ErrNoBody)
}

func (r *Run) target() Target {
	return Target{Subject: r.spec.Subject, Job: r.spec.ID, Edited: r.Edited}
}

func (r *Run) prepare(ctx context.Context, f *flight) (h handOver, err error) {
	meant := func(storedSubject string, _ Entry) bool { return hash(storedSubject) == f.item.stored }
	err = r.stubborn(ctx, ctx, func(ctx context.Context) error {
		m := f.read
		if m == nil {
			now, err := r.Store.get(ctx, f.item.number)
			if err != nil {
				return err
			}
			m = &now
		}
		f.read = nil // a second try reads it again
		h, err = r.Store.prepare(ctx, *m, meant, r.target())
		return err
	})
	return h, err
}

// confirm waits for the answer to a publish, and publishes again when there is none.
func (r *Run) confirm(ctx, finish context.Context, f *flight, future jetstream.PubAckFuture, err error) error {
	if err == nil {
		timer := time.NewTimer(r.Store.timeout)
		defer timer.Stop()
		select {
		case got := <-future.Ok():
			return f.handOver.confirmed(got, nil)
		case err = <-future.Err():
		case <-timer.C:
			err = nats.ErrTimeout
		}
	}
	err = f.handOver.confirmed(nil, err)
	if final(err) || r.spec.Subject != "" && errors.Is(err, ErrNoStream) {
		return err
	}
	return r.stubborn(ctx, finish, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, r.Store.timeout)
		defer cancel()
		// The message id makes it the same message.
		return f.handOver.confirmed(r.Store.js.PublishMsg(ctx, f.handOver.msg))
	})
}

func (r *Run) remove(ctx, finish context.Context, f *flight) error {
	return r.stubborn(ctx, finish, func(ctx context.Context) error { return r.Store.handedOver(ctx, f.handOver) })
}

// settle notes what became of an entry. An error is one that ends the job.
func (r *Run) settle(f *flight, err error) error {
	var told *Refusal
	r.mu.Lock()
	var bad *EntryError
	switch {
	case err == nil:
		r.job.Handed++
		r.sent++
	case errors.Is(err, ErrNotRemoved):
		r.job.Handed++
	case errors.Is(err, ErrNotFound):
		r.job.Gone++
		err = nil
	case refusal(err), errors.As(err, &bad), r.spec.Subject != "" && errors.Is(err, ErrNoStream):
		told = &Refusal{f.item.number, err.Error()}
		r.job.Refused++
		if len(r.job.Refusals) < maxRefusals {
			r.job.Refusals = append(r.job.Refusals, *told)
		}
		err = nil
	}
	r.notify()
	r.mu.Unlock()
	if told != nil && r.Refused != nil {
		r.telling.Lock()
		defer r.telling.Unlock()
		r.Refused(*told)
	}
	return err
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
	if lostRace(err) {
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

func (r *Run) snapshot() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{Job: r.job, Verdicts: r.verdicts, Lost: r.unseen, Waiting: r.waiting}
	p.Refusals = append([]Refusal(nil), r.job.Refusals...)
	return p
}

func (r *Run) show() {
	if r.Progress != nil {
		r.Progress(r.snapshot())
	}
}

// finish writes how it ended, and returns that.
func (r *Run) finish(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.Store.timeout)
	defer cancel()
	r.mu.Lock()
	r.waiting = false
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
			r.job.Stage = 0 // whoever resumes it begins carefully again
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
			err = fmt.Errorf("everything is handed over, but the job could not be written: %w", failed)
		}
	}
	*r.Job = job
	r.show()
	if err != nil && !errors.Is(err, ErrJobCancelled) && !errors.Is(err, ErrJobTaken) {
		return &StoppedError{job.ID, err}
	}
	return err
}
