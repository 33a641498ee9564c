package logging

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	maxQueued  = 4 << 20         // bytes
	flushBound = 1 * time.Second // for Close
)

// Writer passes what is written on to another writer, from a goroutine of its own. Write never blocks and never fails:
// what the other writer is too slow for, or refuses, is dropped and counted. Safe for concurrent use.
type Writer struct {
	w    io.Writer
	wake chan struct{} // holds one
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	queue   [][]byte
	queued  int // bytes, those being written included
	dropped uint64
	closed  bool
}

// NewWriter starts the goroutine; Close ends it.
func NewWriter(w io.Writer) *Writer {
	q := &Writer{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go q.run()
	return q
}

// Write takes one record. It always returns len(p) and nil.
func (q *Writer) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.queued+len(p) > maxQueued {
		q.dropped++
		return len(p), nil
	}
	q.queue = append(q.queue, append([]byte(nil), p...)) // slog uses p again
	q.queued += len(p)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Dropped counts the records that were never written, for a metric.
func (q *Writer) Dropped() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// Close takes no more records and waits until those taken are written, one second at most. Its error says how many were
// not. If the other writer blocks for ever, the goroutine stays with it: a write to a pipe cannot be called off.
func (q *Writer) Close() error {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
	q.mu.Unlock()
	late := time.NewTimer(flushBound)
	defer late.Stop()
	select {
	case <-q.done:
		return nil
	case <-late.C:
		q.mu.Lock()
		defer q.mu.Unlock()
		return fmt.Errorf("log: %d bytes could not be written within %v", q.queued, flushBound)
	}
}

func (q *Writer) run() {
	defer close(q.done)
	for open := true; open; {
		_, open = <-q.wake
		q.mu.Lock()
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		for _, p := range batch {
			n, err := q.w.Write(p)
			q.mu.Lock()
			q.queued -= len(p)
			if err != nil || n < len(p) {
				q.dropped++
			}
			q.mu.Unlock()
		}
	}
}
