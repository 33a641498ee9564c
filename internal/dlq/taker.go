package dlq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// A replay to a route is published to a work queue, on a subject of its route and stream. Nobody gets it there unless the queue has
// a durable for both, which relay makes when the route runs on that stream for the first time: an entry of another stream, as an
// import brings it, or of a route that reads another stream now, would lie there for ever, and its job would wait for its verdict.
// So whoever hands over looks for the durable first, and an entry without one stays.

// takerFor is for how long the durable of a route and stream is taken for granted, or for missing.
const takerFor = 2 * time.Second

// takers are the durables of the retry stream that were looked for lately.
type takers struct {
	mu    sync.Mutex
	known map[string]lookedFor // by due subject, but for the last token
}

type lookedFor struct {
	taker
	at time.Time
}

// taker is the durable that takes what is replayed to a route from a stream.
type taker struct {
	there bool
	asked bool // an instance waits for messages of it
}

// taker looks for it. An error is one of the server's; without a retry stream it is [ErrNoStream].
func (s *Store) taker(ctx context.Context, route, stream string) (taker, error) {
	due := fmt.Sprintf("%s.due.%s.%s.0", s.service, route, stream)
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	c, err := s.js.Consumer(ctx, retryName(s.service), retry.DueDurable(route, stream))
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrNotPullConsumer), errors.Is(err, jetstream.ErrInvalidConsumerName):
		return taker{}, nil
	case err != nil:
		return taker{}, fmt.Errorf("looking for the durable of route %s and stream %s: %w", route, stream, classify(err))
	}
	info := c.CachedInfo()
	f := info.Config.FilterSubject
	return taker{there: f == "" || subject.Matches(f, due), asked: info.NumWaiting > 0}, nil
}

// untaken says why nobody would get what is replayed to the route from the stream; empty: somebody does, now or when it runs.
func (s *Store) untaken(ctx context.Context, route, stream string) (string, error) {
	key := route + "." + stream
	s.takers.mu.Lock()
	known, ok := s.takers.known[key]
	s.takers.mu.Unlock()
	if !ok || time.Since(known.at) > takerFor {
		t, err := s.taker(ctx, route, stream)
		if streamMissing(err) || errors.Is(err, jetstream.ErrStreamNotFound) {
			return "", nil // the hand-over says so
		}
		if err != nil {
			return "", err
		}
		known = lookedFor{t, time.Now()}
		s.takers.mu.Lock()
		if s.takers.known == nil || len(s.takers.known) > 10_000 {
			s.takers.known = make(map[string]lookedFor)
		}
		s.takers.known[key] = known
		s.takers.mu.Unlock()
	}
	if known.there {
		return "", nil
	}
	return fmt.Sprintf("no instance takes what is replayed to route %s from stream %s: the route never ran on that stream "+
		"(run relay with it once, or publish the message instead: relay dlq replay --to-subject SUBJECT)", route, stream), nil
}
