package retry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/beat"
)

// The bucket may be away while all else works: the server of its only replica is dead, it has no quorum, somebody deleted
// it. Whoever needs it then must learn that at once, not after a time-out each, and it must be noticed when it is back.

const (
	// tryEvery is the pause between two requests to a bucket that does not answer, of all who need it together.
	tryEvery = time.Second
	// lookEvery is how often a bucket that works is looked for: somebody may delete it while nothing fails.
	lookEvery = 10 * time.Second
	// lookPatience bounds each of these requests.
	lookPatience = 5 * time.Second
)

// ErrUnavailable says that the bucket did not answer lately; nothing was asked of it this time.
var ErrUnavailable = errors.New("the bucket did not answer lately")

// health is what is known of a bucket. Its zero value is that of one that works.
type health struct {
	mu    sync.Mutex
	since time.Time // of the first failure after the last success; zero while it works
	err   error     // the latest failure
	tried time.Time
}

// usable returns an error while the bucket does not answer, but to one caller every tryEvery, who finds out.
func (h *health) usable(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.since.IsZero():
		return nil
	case now.Sub(h.tried) < tryEvery:
		return fmt.Errorf("%w: %w", ErrUnavailable, h.err)
	}
	h.tried = now
	return nil
}

// wrote says that the bucket has taken something, or refused it for a reason that only a bucket that works has. A read proves
// less: one that is full, or has lost its quorum, may still be read.
func (h *health) wrote() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since, h.err = time.Time{}, nil
}

func (h *health) failed(err error) {
	if errors.Is(err, context.Canceled) {
		return // by whoever asked
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.since.IsZero() {
		h.since = now
	}
	h.err, h.tried = err, now
}

func (h *health) trouble() (since time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since, h.err
}

// Trouble returns since when the bucket takes no records, and the latest reason; a nil error while it works. It asks
// nothing of the server.
func (b *Bucket) Trouble() (since time.Time, err error) { return b.health.trouble() }

// Watch looks after the bucket until ctx is done: it finds out that it is away before a failure has to be recorded, and that
// it is back, and makes it again when somebody has deleted it. The log says when it goes and when it is back.
func (b *Bucket) Watch(ctx context.Context, log *slog.Logger) {
	tick := beat.NewTicker(tryEvery)
	defer tick.Stop()
	var away time.Time // since when, as the log knows
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Next()
		}
		switch since, _ := b.Trouble(); {
		case !since.IsZero():
			b.prove(ctx, log)
			looked = time.Now()
		case time.Since(looked) >= lookEvery:
			b.look(ctx, log)
			looked = time.Now()
		}
		switch since, err := b.Trouble(); {
		case ctx.Err() != nil:
		case err != nil && away.IsZero():
			log.Error("cannot record attempts; retrying. Until then messages that fail are parked with their attempts, or held in memory",
				"bucket", b.name, "since", since, "error", err)
			away = since
		case err == nil && !away.IsZero():
			log.Info("attempts can be recorded again", "bucket", b.name, "after", time.Since(away).Round(time.Millisecond))
			away = time.Time{}
		}
	}
}

// look finds out whether the bucket is there.
func (b *Bucket) look(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	b.isThere(ctx, log)
}

// isThere tells whether the bucket is there. It makes one that was deleted.
func (b *Bucket) isThere(ctx context.Context, log *slog.Logger) bool {
	stream, err := b.js.Stream(ctx, b.streamName())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if _, err = b.make(ctx); err == nil {
			log.Error("the bucket of attempts was deleted; relay created it again. Attempts that this instance does not remember are counted from zero",
				"bucket", b.name)
			stream, err = b.js.Stream(ctx, b.streamName())
		}
	}
	if err != nil {
		b.health.failed(err)
		return false
	}
	b.Learn(stream.CachedInfo())
	return true
}

// prove is look, and finds out whether the bucket takes something.
func (b *Bucket) prove(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	if !b.isThere(ctx, log) {
		return
	}
	revision, err := b.kv.Put(ctx, probeKey, probe)
	if err != nil {
		b.health.failed(err)
		return
	}
	b.health.wrote()
	if err := b.remove(ctx, probeKey, revision); err != nil {
		log.Debug("cannot remove the key of a test write from the bucket", "bucket", b.name, "key", probeKey, "error", err)
	}
}

// probeKey is written to prove that the bucket takes something. Keys of records have more tokens.
const probeKey = "probe"

var probe = []byte(strings.Repeat("this bucket takes records; ", 10)) // as long as a record
