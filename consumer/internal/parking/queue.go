package parking

import (
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/pool"
)

const (
	// paths is how many messages of a route are put aside at once.
	paths = 64
	// Patience bounds one of them.
	Patience = 2 * time.Second
	// Rest is how long none is after one that the retry stream did not take.
	Rest = 10 * time.Second
	// Most is how many may wait for that, above which the pull loops of the route do not ask for more: each is in
	// memory, and the server has them as well.
	Most = 4096
	// MostBytes is the same for their size.
	MostBytes = 16 << 20
)

// Queue are the messages of a route that are on their way to the retry stream without an attempt. Its methods are for all goroutines.
type Queue struct {
	more     func()
	paths    *pool.Pool
	bytes    atomic.Int64
	wasFull  atomic.Bool   // a pull loop waits
	failures atomic.Uint64 // of the retry stream
	again    atomic.Int64  // after one: when the next message may try, in Unix nanoseconds; 0 after a success
}

// NewQueue makes a queue. More is called when there is room again after Full said that there was none. It must not block.
func NewQueue(more func()) *Queue { return &Queue{more: more, paths: pool.New(paths)} }

// MayTry is true but after a failure: then one message tries, every Rest.
func (q *Queue) MayTry(now time.Time) bool {
	at := q.again.Load()
	return at == 0 || now.UnixNano() >= at && q.again.CompareAndSwap(at, now.Add(Rest).UnixNano())
}

// Works says that the retry stream has taken a message.
func (q *Queue) Works() { q.again.Store(0) }

// Fails says that it has not. It returns false when that was known.
func (q *Queue) Fails(now time.Time) bool { return q.again.Swap(now.Add(Rest).UnixNano()) == 0 }

// Add has park called soon for a message of that size, and sendBack if one of those before failed meanwhile: then so do the others. It does not
// block, and calls neither itself. Park returns false when the retry stream failed.
func (q *Queue) Add(size int, park func() bool, sendBack func()) {
	n, failures := int64(size), q.failures.Load()
	q.bytes.Add(n)
	q.paths.Go(func() {
		if q.failures.Load() != failures {
			sendBack()
		} else if !park() {
			q.failures.Add(1)
		}
		q.bytes.Add(-n)
		if q.wasFull.Load() && !q.above(2) && q.wasFull.CompareAndSwap(true, false) {
			q.more()
		}
	})
}

// Full tells whether too many wait. More is called when they are half as many.
func (q *Queue) Full() bool {
	if !q.above(1) {
		return false
	}
	q.wasFull.Store(true)
	return q.above(1) // else nobody may be left who would call more
}

// above tells whether more than that part of what may wait does.
func (q *Queue) above(part int) bool {
	return q.paths.Len() > Most/part || q.bytes.Load() > int64(MostBytes/part)
}

// Failures is how often the retry stream failed.
func (q *Queue) Failures() int { return int(q.failures.Load()) }

// Wait waits until all that were added are through.
func (q *Queue) Wait() { q.paths.Wait() }
