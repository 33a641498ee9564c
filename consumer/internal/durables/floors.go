package durables

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
)

// A durable that is deleted takes with it how far its messages were handled, and one that is made anew with start: all has the
// whole stream handled once more. So its ack floor is noted where the accident does not reach: in the metadata of the durables on the retry stream that
// belong to it, one for each of its routes.

// floorAgain is after what time a floor that has not moved is noted again: somebody may have made the durable on the retry stream anew.
const floorAgain = 10 * time.Minute

// Floors notes how far a durable is. Its methods are for all goroutines.
type Floors struct {
	JS              jetstream.JetStream
	Log             *slog.Logger
	Retries         string // the retry stream
	Stream, Durable string
	Routes          func() []string

	mu    sync.Mutex
	seq   uint64
	noted time.Time
}

// Has tells whether that floor is noted, and not for long.
func (f *Floors) Has(floor uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq == floor && time.Since(f.noted) < floorAgain
}

// Note notes the floor of the durable on the stream that was made then.
func (f *Floors) Note(ctx context.Context, made time.Time, floor uint64) {
	if floor == 0 {
		return
	}
	all := true
	for _, route := range f.Routes() {
		due, err := f.JS.Consumer(ctx, f.Retries, retry.DueDurable(route, f.Stream))
		if err != nil {
			all = false
			continue
		}
		c := due.CachedInfo().Config
		now := provision.Floor{Durable: f.Durable, Stream: made.UnixNano(), Seq: floor, At: time.Now().Unix()}
		if was, has := provision.FloorOf(c.Metadata); has && was.Same(now) {
			continue
		}
		c.Metadata = now.Over(c.Metadata)
		if _, err := f.JS.UpdateConsumer(ctx, f.Retries, c); err != nil {
			all = false
			f.Log.Debug("cannot store the ack floor of the durable", "error", err)
		}
	}
	if all {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.seq, f.noted = floor, time.Now()
	}
}

// Before is how far the durable was that is not there any more, on the stream that was made then.
func (f *Floors) Before(ctx context.Context, made time.Time) (floor provision.Floor, known bool) {
	due, err := f.JS.Consumer(ctx, f.Retries, retry.DueDurable(f.Routes()[0], f.Stream))
	if err != nil {
		return floor, false
	}
	floor, known = provision.FloorOf(due.CachedInfo().Config.Metadata)
	return floor, known && floor.Durable == f.Durable && floor.Stream == made.UnixNano()
}
