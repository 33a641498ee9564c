package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/retry"
)

// oldest is the first message of a durable that waits: all before it are settled, and the server says how far that is.
type oldest struct {
	last atomic.Pointer[waitsSince]
	// Of watchCounts only: when it is looked for again at the earliest.
	soon time.Time
}

type waitsSince struct {
	floor uint64    // that of the durable when it was found
	at    time.Time // when it was stored; zero when there is none
}

// oldestEvery is how often the oldest message is looked for, unless that takes long. While the floor stays it is the same one, and
// nobody is asked.
const oldestEvery = 2 * time.Second

// findOldest asks the server for the first message above the floor. It comes with its body, so large ones are asked for less often.
func (s *source) findOldest(ctx context.Context) {
	l, have := s.looked.Load(), s.oldest.last.Load()
	began := time.Now()
	if l == nil || s.isLost() || began.Before(s.oldest.soon) {
		return
	}
	if l.pending == 0 && l.outstanding == 0 {
		s.oldest.last.Store(&waitsSince{floor: l.floor})
		return
	}
	if have != nil && have.floor == l.floor && !have.at.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	found := waitsSince{floor: l.floor}
	for _, p := range s.patterns {
		at, err := s.relay.storedAfter(ctx, s.stream, p.pattern, l.floor)
		if err != nil {
			s.oldest.soon = time.Now().Add(countEvery)
			return
		}
		if !at.IsZero() && (found.at.IsZero() || at.Before(found.at)) {
			found.at = at
		}
	}
	s.oldest.last.Store(&found)
	s.oldest.soon = later(began.Add(oldestEvery), time.Now().Add(100*time.Since(began)))
}

// storedAfter is when the first message after this sequence that has such a subject was stored; the zero time when there is none.
func (r *Relay) storedAfter(ctx context.Context, stream, pattern string, seq uint64) (time.Time, error) {
	m, err := looks.Next(ctx, r.nc, r.api, stream, pattern, seq+1)
	if m == nil {
		return time.Time{}, err
	}
	return m.Time, nil
}

// oldest is when the oldest message that waits for the route was published; the zero time when none does.
func (rt *route) oldest() (at time.Time, known bool) {
	for _, s := range rt.relay.openSources() {
		if !s.serves(rt) || s.due {
			continue
		}
		if found := s.oldest.last.Load(); found != nil && !s.isLost() {
			at, known = found.at, true
		}
	}
	if c := rt.parkedNow.last.Load(); known && c != nil && !c.oldest.IsZero() && (at.IsZero() || c.oldest.Before(at)) {
		at = c.oldest
	}
	return at, known
}

// publishedAt is when a message of the retry stream was first stored; that of its own time when its headers do not say.
func publishedAt(h nats.Header) time.Time {
	if o, _, err := retry.Unwrap(h); err == nil && !o.Time.IsZero() {
		return o.Time
	}
	at, _ := time.Parse(time.RFC3339Nano, h.Get(jetstream.TimeStampHeaer))
	return at
}
