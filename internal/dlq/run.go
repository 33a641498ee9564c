package dlq

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
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
// lost: a message that has no verdict and is no longer in the retry stream was handled, and is not waited for. What no instance asks
// for is waited for, and told; what lies where no durable takes it ends the job.
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
	ahead       int64         // as well: see maxAhead

	spec    Job  // what it is to do; nobody changes it after take
	resumed bool // an earlier run of the job may have handed something over; nobody changes it after take

	telling  sync.Mutex // one call of Refused at a time
	mu       sync.Mutex
	changed  chan struct{} // closed at each change of what follows
	job      Job
	seen     map[uint64]struct{} // verdicts
	verdicts Tally
	unseen   int                 // handled, but their verdicts are lost
	sent     uint64              // handed over by this run
	tokens   map[uint64]struct{} // of those, when verdicts are waited for
	unasked  map[dueOf]time.Time // since when no instance asks for some of them
	nobody   time.Time           // since when some of them lie where nobody takes them
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

// ErrNobody is why a job stopped that waits for verdicts which nobody can give: what it handed over lies where no durable takes it.
var ErrNobody = errors.New("no instance takes what was handed over")

// ErrTooManyFailures is why a job stopped whose threshold was passed.
var ErrTooManyFailures = errors.New("too many failures")

// Do runs the job until everything is handed over, and the verdicts are there if it waits for them. It returns
// [ErrJobCancelled], [ErrJobTaken], or a [*StoppedError] with what stopped it: [ErrTooManyFailures], [ErrNobody], the cause of ctx, or what
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
	if r.ahead == 0 {
		r.ahead = maxAhead
	}
	r.changed, r.seen, r.tokens = make(chan struct{}), make(map[uint64]struct{}), make(map[uint64]struct{})
	if err := r.take(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The job is written, and verdicts are read, while what is under way ends.
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { r.heartbeat(beside, stop) })
	err := r.Store.removable(ctx)
	if err == nil {
		err = r.begin(beside, &others, stop)
	}
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

// stages hands over everything.
func (r *Run) stages(ctx context.Context, stop context.CancelCauseFunc) error {
	limit := rate.NewLimiter(rate.Inf, 0)
	if r.spec.Rate > 0 {
		// A quarter of a second is made up for after a pause.
		limit = rate.NewLimiter(rate.Limit(r.spec.Rate), max(1, int(r.spec.Rate/4)))
	}
	items := r.Plan.items
	resumed := r.spec.Handed > 0
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
			if resumed && r.verdicts.Failed-r.job.Before.Failed < 2 {
				err = nil // one bad message says nothing of the others
			}
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

// notify wakes those that wait for a change. The lock is held.
func (r *Run) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Run) snapshot() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{Job: r.job, Verdicts: r.verdicts, Lost: r.unseen, Waiting: r.waiting}
	p.Refusals, p.Reasons, p.WaitsFor = slices.Clone(r.job.Refusals), maps.Clone(r.job.Reasons), slices.Clone(r.job.WaitsFor)
	return p
}

func (r *Run) show() {
	if r.Progress != nil {
		r.Progress(r.snapshot())
	}
}
