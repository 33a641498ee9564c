// Package letters paces what a route stores as dead letters. While dead letters are not taken, those that wait for that are bounded in number and bytes: the
// others come again later, so that what cannot be dead-lettered does not keep out what can be handled.
package letters

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

const (
	// most may wait, and mostBytes of them.
	most      = 4096
	mostBytes = 8 << 20
	// forgotten is when one that could not be stored is no trouble any more: it would have been tried here again, but another instance has
	// it, or it is gone.
	forgotten = time.Minute
)

// backoff paces the tries while dead letters cannot be stored. Its Max is short enough that all is well ten seconds after they can be
// stored again (I-18).
var backoff = supervisor.Backoff{Min: time.Second, Max: 8 * time.Second}.WithRetryDefaults()

// Queue is that of one route. Its methods are for all goroutines.
type Queue struct {
	paths *pool.Pool // its own: messages that failed must not stand behind dead letters that are not answered
	bytes atomic.Int64

	mu     sync.Mutex
	err    error // of the last one
	at     time.Time
	failed int       // how often the delay was over, and they still failed
	next   time.Time // what fails before then does not count: many fail at once when the connection is away for a moment
}

// New makes a queue that stores so many at once.
func New(paths int) *Queue { return &Queue{paths: pool.New(paths)} }

// Add has store called soon, for a message of that size, or later when too many wait by then. It calls neither itself. It returns false and
// does nothing when too many wait already.
func (q *Queue) Add(size int, store, later func()) bool {
	if q.crowded() {
		return false
	}
	n := int64(size)
	q.bytes.Add(n)
	q.paths.Go(func() {
		crowded := q.crowded()
		q.bytes.Add(-n)
		if crowded {
			later()
		} else {
			store()
		}
	})
	return true
}

// crowded tells whether too many wait, while dead letters are not taken.
func (q *Queue) crowded() bool {
	return (q.paths.Len() > most || q.bytes.Load() > mostBytes) && q.inARow() > 0
}

// Note notes how one fared.
func (q *Queue) Note(err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err, q.at = transient.Plain(err), now
	switch {
	case err == nil:
		q.failed = 0
	case q.failed == 0 || !now.Before(q.next):
		q.failed++
		q.next = now.Add(backoff.Delay(q.failed - 1))
	}
}

// Delay is when to try one again that was not taken.
func (q *Queue) Delay() time.Duration { return backoff.Delay(max(0, q.inARow()-1)) }

func (q *Queue) inARow() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed
}

// Trouble is why dead letters cannot be stored, if so.
func (q *Queue) Trouble(now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.at) >= forgotten {
		return nil
	}
	return q.err
}

// Wait waits until all that were added are through.
func (q *Queue) Wait() { q.paths.Wait() }
