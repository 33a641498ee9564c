package archive

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	// fullBatch is the size from which a batch is sent, and oldBatch the age.
	fullBatch = 256 << 10
	oldBatch  = 500 * time.Millisecond
	// maxHeld bounds what is in memory. It is for a million records without results: seconds at full speed.
	maxHeld = 16 << 20
	// senders is how many batches are on their way at once.
	senders = 2
	// maxSpare is how many batches that were sent wait to be filled again.
	maxSpare = 4
	// headroom of the server's max_payload is for the subject, the headers, and the record that makes a batch full.
	headroom = MaxResult + 4<<10

	sendTimeout   = 5 * time.Second
	shortestPause = 250 * time.Millisecond
	longestPause  = 10 * time.Second
	sayAgain      = time.Minute
)

// Config makes a Writer.
type Config struct {
	Service, Instance string
	// Publish returns when the message is stored.
	Publish func(ctx context.Context, m *nats.Msg) error
	// MaxPayload is the server's.
	MaxPayload func() int64
	Logger     *slog.Logger
}

// Writer takes records and writes them in batches. Its methods are safe for concurrent use.
type Writer struct {
	cfg Config

	stored, dropped atomic.Uint64

	begun   chan struct{} // holds a value when a batch was begun
	ready   chan struct{} // holds a value when there is something to send
	closing chan struct{} // closed by Flush
	empty   chan struct{} // closed when it is closing and nothing is left

	mu     sync.Mutex // held for moments only: handlers wait for it
	open   map[string]*batch
	full   []*batch
	spare  []*batch
	held   int // bytes of all that is not stored
	unsent int // batches that are full, or on their way
	most   int // size from which a batch is full
	closed bool
	said   time.Time // when the log last said that it cannot be written
	toldOf uint64    // how many were dropped then
}

// New returns a Writer that takes records, and writes them once Run runs.
func New(cfg Config) *Writer {
	return &Writer{
		cfg: cfg, open: make(map[string]*batch), most: fullBatch,
		begun: make(chan struct{}, 1), ready: make(chan struct{}, 1), closing: make(chan struct{}), empty: make(chan struct{}),
	}
}

// Stored is how many records the server has confirmed, and Dropped how many were left out.
func (w *Writer) Stored() uint64 { return w.stored.Load() }

// Dropped is how many records were left out.
func (w *Writer) Dropped() uint64 { return w.dropped.Load() }

// Add takes the record of a message of a stream. It does not wait: what finds no room is dropped and counted. The result is copied.
func (w *Writer) Add(stream string, r Record) {
	if len(r.Result) > MaxResult {
		r.Result, r.Cut = r.Result[:MaxResult], true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.held >= maxHeld {
		w.dropped.Add(1)
		return
	}
	b := w.open[stream]
	if b == nil {
		b = w.fresh(stream)
		w.open[stream] = b
		signal(w.begun)
	}
	before := len(b.data)
	b.add(r)
	w.held += len(b.data) - before
	if len(b.data) >= w.most {
		w.shut(b)
	}
}

// fresh is an empty batch. The lock is held.
func (w *Writer) fresh(stream string) *batch {
	b := new(batch)
	if n := len(w.spare) - 1; n >= 0 {
		b, w.spare = w.spare[n], w.spare[:n]
	}
	b.reset(stream)
	w.held += len(b.data)
	return b
}

// shut has a batch sent. The lock is held.
func (w *Writer) shut(b *batch) {
	delete(w.open, b.stream)
	w.full = append(w.full, b)
	w.unsent++
	signal(w.ready)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes until ctx is done. What is not written then is dropped and counted: call [Writer.Flush] before.
func (w *Writer) Run(ctx context.Context) {
	var sending sync.WaitGroup
	for range senders {
		sending.Go(func() {
			for b := w.next(ctx); b != nil; b = w.next(ctx) {
				w.store(ctx, b)
			}
		})
	}
	if n := int(w.cfg.MaxPayload()) - headroom; n < fullBatch {
		w.mu.Lock()
		w.most = max(n, 1)
		w.mu.Unlock()
	}
	for ctx.Err() == nil {
		select {
		case <-w.begun:
			w.pause(ctx, oldBatch)
			w.shutAll()
		case <-ctx.Done():
		}
	}
	sending.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, b := range w.full {
		w.dropped.Add(b.records)
	}
	for _, b := range w.open {
		w.dropped.Add(b.records)
	}
	w.full, w.open = nil, nil
	if n := w.dropped.Load(); n > w.toldOf {
		w.cfg.Logger.Warn("outcomes of messages were left out of the archive", "records", n-w.toldOf)
	}
}

// shutAll has all batches sent that are open.
func (w *Writer) shutAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.open {
		w.shut(b)
	}
}

// next waits for a batch to send; nil: ctx is done.
func (w *Writer) next(ctx context.Context) *batch {
	for {
		w.mu.Lock()
		if len(w.full) > 0 && ctx.Err() == nil {
			b := w.full[0]
			w.full[0] = nil
			w.full = w.full[1:]
			if len(w.full) > 0 {
				signal(w.ready)
			}
			w.mu.Unlock()
			return b
		}
		w.mu.Unlock()
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil
		}
	}
}

// store sends a batch until it is stored. Sent twice it is stored once, by its id, for as long as the server remembers that.
func (w *Writer) store(ctx context.Context, b *batch) {
	m := &nats.Msg{Subject: Prefix(w.cfg.Service) + b.stream, Data: b.data, Header: nats.Header{
		headerFirst: {strconv.FormatUint(b.lowest, 10)}, headerLast: {strconv.FormatUint(b.highest, 10)},
		headerRecords: {strconv.FormatUint(b.records, 10)}, headerInstance: {w.cfg.Instance}, nats.MsgIdHdr: {nuid.Next()},
	}}
	again := shortestPause
	for {
		call, cancel := context.WithTimeout(ctx, sendTimeout)
		err := w.cfg.Publish(call, m)
		cancel()
		switch {
		case err == nil:
			w.stored.Add(b.records)
			w.written()
		case ctx.Err() == nil && !neverStored(err):
			w.failed(err)
			w.pause(ctx, again)
			again = min(2*again, longestPause)
			continue
		default:
			w.dropped.Add(b.records)
			if ctx.Err() == nil {
				w.failed(err)
			}
		}
		w.sent(b)
		return
	}
}

// neverStored tells whether another try would be refused, too: the batch is too large for this server.
func neverStored(err error) bool {
	const tooLarge = 10054 // "message size exceeds maximum allowed"
	var refused *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &refused) && refused.ErrorCode == tooLarge
}

// sent lets go of a batch that is stored or dropped.
func (w *Writer) sent(b *batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held -= len(b.data)
	if len(w.spare) < maxSpare {
		w.spare = append(w.spare, b)
	}
	w.unsent--
	w.tellEmpty()
}

// tellEmpty is called with the lock.
func (w *Writer) tellEmpty() {
	if w.closed && w.unsent == 0 && w.empty != nil {
		close(w.empty)
		w.empty = nil
	}
}

// failed has the log say now and then that the archive is not written.
func (w *Writer) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); w.said.IsZero() || now.Sub(w.said) >= sayAgain {
		n := w.dropped.Load()
		w.cfg.Logger.Warn("cannot write the archive; retrying. Routes go on; outcomes that find no room in memory are left out of the archive", "left_out", n-w.toldOf, "error", err)
		w.said, w.toldOf = now, n
	}
}

// written has the log say that it is over.
func (w *Writer) written() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.said.IsZero() {
		n := w.dropped.Load()
		w.cfg.Logger.Info("the archive is written again", "left_out", n-w.toldOf)
		w.said, w.toldOf = time.Time{}, n
	}
}

// pause ends sooner when there is no time for it.
func (w *Writer) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-w.closing:
		// A second try without a pause is enough: while the rest is written, what fails would be sent without end.
		select {
		case <-ctx.Done():
		case <-time.After(min(d, shortestPause)):
		}
	}
}

// Flush has all written that was taken, until ctx is done. What comes later is dropped. It is called once.
func (w *Writer) Flush(ctx context.Context) {
	w.mu.Lock()
	for _, b := range w.open {
		w.shut(b)
	}
	w.closed = true
	empty := w.empty
	w.tellEmpty()
	w.mu.Unlock()
	close(w.closing)
	select {
	case <-empty:
	case <-ctx.Done():
	}
}
