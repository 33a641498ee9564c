// Package backlog is how much waits in a durable and in relay's own streams, and since when, as the server said lately. What it asks the server costs
// less than a hundredth of the time, of the server as of the link.
package backlog

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/retry"
)

const (
	// countEvery is how often the messages of a route in relay's own streams are counted, unless that takes long.
	countEvery = 15 * time.Second
	// oldestEvery is how often the oldest message is looked for, unless that takes long.
	oldestEvery = 2 * time.Second
	// callTimeout bounds one look.
	callTimeout = 5 * time.Second
	// rest is how many times as long as a look took nothing is asked after it.
	rest = 100
)

// Look is what the server said of a durable.
type Look struct {
	At          time.Time
	Pending     uint64 // not delivered yet
	Outstanding int    // delivered and not settled
	Floor       uint64 // nothing up to this sequence waits
}

// LookOf is what the server says now.
func LookOf(info *jetstream.ConsumerInfo) *Look {
	return &Look{At: time.Now(), Pending: info.NumPending, Outstanding: info.NumAckPending, Floor: info.AckFloor.Stream}
}

// Server is what is asked.
type Server struct {
	Conn    *nats.Conn
	API     string // the prefix of JetStream's API
	Streams *looks.Streams
	// Age is how old an answer about a stream may be that several share.
	Age func() time.Duration
}

// Counted is how many messages match, and when the first of them was published; the zero time when there is none.
type Counted struct {
	N      uint64
	Oldest time.Time
}

// Count counts the messages of a stream whose subjects match.
func (s *Server) Count(ctx context.Context, stream, filter string) (c Counted, err error) {
	n, header, err := audit.Matching(ctx, s.Conn, s.API, stream, filter)
	if err != nil || n == 0 {
		return c, err
	}
	return Counted{n, publishedAt(header)}, nil
}

// publishedAt is when a message of the retry stream was first stored; that of its own time when its headers do not say.
func publishedAt(h nats.Header) time.Time {
	if o, _, err := retry.Unwrap(h); err == nil && !o.Time.IsZero() {
		return o.Time
	}
	at, _ := time.Parse(time.RFC3339Nano, h.Get(jetstream.TimeStampHeaer))
	return at
}

// Count is kept up to date. [Count.Update] is for one goroutine, [Count.Last] for all.
type Count struct {
	last atomic.Pointer[Counted]

	next, soon time.Time // when it is counted again, and when that is possible at the earliest
	stored     uint64    // how many this instance had stored
	of         looks.Content
}

// Last is what was counted last; nil: nothing yet.
func (c *Count) Last() *Counted { return c.last.Load() }

// Update counts when it is time, or soon after this instance has stored more. It blocks for 5 s at most.
func (c *Count) Update(ctx context.Context, s *Server, stored uint64, stream, filter string) {
	began := time.Now()
	if began.Before(c.next) && (stored == c.stored || began.Before(c.soon)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	age := s.Age()
	if stored != c.stored {
		age = 0
	}
	in, err := s.Streams.Get(ctx, stream, age)
	if err == nil && c.last.Load() != nil && c.of == looks.ContentOf(in.CachedInfo()) {
		c.stored, c.next = stored, began.Add(countEvery)
		return
	}
	var n Counted
	if err == nil {
		n, err = s.Count(ctx, stream, filter)
	}
	c.stored, c.next = stored, time.Now().Add(countEvery)
	if err == nil {
		c.of = looks.ContentOf(in.CachedInfo())
		c.last.Store(&n)
		c.soon = time.Now().Add(rest * time.Since(began))
		c.next = later(c.next, c.soon)
	}
}

// Oldest is when the first message of a durable that waits was stored: all before it are settled, and the server says how far that is.
// [Oldest.Update] is for one goroutine, [Oldest.Last] for all.
type Oldest struct {
	last atomic.Pointer[waitsSince]
	soon time.Time // when it is looked for again at the earliest
}

type waitsSince struct {
	floor uint64    // that of the durable when it was found
	at    time.Time // when it was stored; zero when there is none
}

// Last is what was found last: the zero time when nothing waits. It is not known until something was found.
func (o *Oldest) Last() (at time.Time, known bool) {
	if found := o.last.Load(); found != nil {
		return found.at, true
	}
	return at, false
}

// Update asks the server for the first message above the floor. It comes with its body, so large ones are asked for less often. While the floor
// stays it is the same one, and nobody is asked. It blocks for 5 s at most.
func (o *Oldest) Update(ctx context.Context, s *Server, l *Look, stream string, patterns []string) {
	began, have := time.Now(), o.last.Load()
	if began.Before(o.soon) {
		return
	}
	if l.Pending == 0 && l.Outstanding == 0 {
		o.last.Store(&waitsSince{floor: l.Floor})
		return
	}
	if have != nil && have.floor == l.Floor && !have.at.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found := waitsSince{floor: l.Floor}
	for _, pattern := range patterns {
		m, err := looks.Next(ctx, s.Conn, s.API, stream, pattern, l.Floor+1)
		if err != nil {
			o.soon = time.Now().Add(countEvery)
			return
		}
		if m != nil && (found.at.IsZero() || m.Time.Before(found.at)) {
			found.at = m.Time
		}
	}
	o.last.Store(&found)
	o.soon = later(began.Add(oldestEvery), time.Now().Add(rest*time.Since(began)))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
