// Package dlq reads the dead letters of a service, and hands them back: [Attach], and then the methods of [Store].
//
// A dead letter is a message that could not be handled: relay stored it in the stream <SERVICE>_DLQ, with its body and headers as they were, where it
// came from, why it was given up, after how many attempts, and its last error ([Entry]). docs/dead-letters.md says what the commands relay dlq do
// with them; this package is for programs that do so by themselves.
//
// What replays many entries with a rate, in stages, or waits for what becomes of them is [Job], which a running relay takes
// (consumer.Relay.Replay).
//
// Nothing here runs in the background. All methods ask the NATS server, and return when ctx is done.
package dlq

import (
	"context"
	"iter"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
)

// Store is the dead letters of a service. Safe for concurrent use.
type Store struct{ entries *dlq.Store }

// Attach returns the dead letters of a service (empty: relay). It makes nothing. The error is [ErrNoStream] when the service has none yet.
func Attach(ctx context.Context, js jetstream.JetStream, service string) (*Store, error) {
	s, err := dlq.Attach(ctx, js, service)
	if err != nil {
		return nil, err
	}
	return &Store{s}, nil
}

// List yields the entries that match, oldest first, up to the newest one at the time of the call. It reads page by page in bounded memory, and brings
// no bodies unless the filter asks for them.
//
// A stored message that is no entry, or whose body cannot be had, yields an [*EntryError], and the listing goes on. Any other error ends it. You may
// take as long as you like between two entries, and replay or discard them meanwhile.
func (s *Store) List(ctx context.Context, f Filter) iter.Seq2[Entry, error] {
	return s.entries.List(ctx, f)
}

// Count is how many entries match, and how many there are that cannot be read. When the filter says no more than Route, Subject, Since and After, the
// server counts, and what cannot be read is among the entries.
func (s *Store) Count(ctx context.Context, f Filter) (entries, unreadable int, err error) {
	return s.entries.Count(ctx, f)
}

// Get reads one entry with its body, by its sequence in the stream of dead letters. The error is [ErrNotFound] when there is none, and an
// [*EntryError] when it cannot be read. On a replicated stream it may be moments behind.
func (s *Store) Get(ctx context.Context, sequence uint64) (Entry, error) {
	return s.entries.Get(ctx, sequence)
}

// Replay hands an entry to the route that failed, with its body and headers as they were and with new attempts, and removes it when that is
// confirmed. No other consumer of the stream sees the message. Of the entry it uses where it is stored and its origin: it may come from a listing
// without bodies.
//
// When the error is [ErrNotFound] somebody else replayed or discarded it. [ErrRefused], [ErrTooLarge] and [ErrNoBody] say that it cannot be replayed,
// [ErrNotRemoved] that it was handed over and could not be removed. After any other error the entry is still there, and the message may have been
// handed over or not: a second replay within 10 minutes does not deliver it twice.
func (s *Store) Replay(ctx context.Context, e Entry) error {
	return s.entries.Replay(ctx, e, dlq.Target{})
}

// Publish is [Store.Replay] to a subject, as a new message that every consumer of its stream sees; empty: the subject on which the message was published
// first. Headers named Nats-… stay behind. The dedupe window of that stream says for how long a second one is no second message.
func (s *Store) Publish(ctx context.Context, e Entry, subject string) error {
	if subject == "" {
		subject = dlq.ToOriginal
	}
	return s.entries.Replay(ctx, e, dlq.Target{Subject: subject})
}

// Discard removes an entry, readable or not, with its body. The error is [ErrNotFound] when there is none.
func (s *Store) Discard(ctx context.Context, sequence uint64) error {
	return s.entries.Discard(ctx, sequence)
}

type (
	// Entry is a dead letter.
	Entry = dlq.Entry
	// Filter says which entries are meant. The zero value means all.
	Filter = dlq.Filter
	// BodyMatch is a condition on the body of an entry, as [ParseBodyMatch] reads it.
	BodyMatch = dlq.BodyMatch
	// EntryError is about a stored message that cannot be read as an entry.
	EntryError = dlq.EntryError
	// Origin is where a message comes from, and what became of it: its route, stream, sequence and subject, its attempts and its last error.
	Origin = dlq.Origin
	// Reason is why a message is dead.
	Reason = dlq.Reason
	// Config says how long dead letters are kept, how many, and what happens when there is no room. Of consumer.Config.DLQ only MaxAge, MaxBytes,
	// MaxMsgs and OnFull count.
	Config = dlq.Config
	// Job is a replay of many entries.
	Job = dlq.Job
	// Progress is how far a job is.
	Progress = dlq.Progress
	// StoppedError says why a job stopped by itself. It can be resumed.
	StoppedError = dlq.StoppedError
)

// The reasons why a message is dead.
const (
	Exhausted = dlq.Exhausted // its attempts are spent
	Rejected  = dlq.Rejected  // its handler said so
	Crash     = dlq.Crash     // it kept ending the process that it ran in
	Expired   = dlq.Expired   // its deadline, or the max_age of its route, is over
	GaveUp    = dlq.GaveUp    // its key gave up
	Operator  = dlq.Operator  // somebody took it out of its retries
)

// The values of [Config].OnFull.
const (
	OnFullBlock      = dlq.OnFullBlock      // new ones are refused, and the messages wait in their own stream (default)
	OnFullDropOldest = dlq.OnFullDropOldest // the oldest ones go
)

// What errors are, by errors.Is.
var (
	ErrNoStream        = dlq.ErrNoStream        // the stream or the bucket is not there, or has no leader just now
	ErrNotFound        = dlq.ErrNotFound        // there is no such entry, or none any more
	ErrNoBody          = dlq.ErrNoBody          // the body of a large message is missing or damaged
	ErrRefused         = dlq.ErrRefused         // it cannot be replayed so; the error says why, and trying again does not help
	ErrTooLarge        = dlq.ErrTooLarge        // it does not fit into a message
	ErrNotRemoved      = dlq.ErrNotRemoved      // it was handed over, and is still there
	ErrTooManyFailures = dlq.ErrTooManyFailures // a job passed its threshold
	ErrJobCancelled    = dlq.ErrJobCancelled    // somebody cancelled the job
)

// ParseBodyMatch reads a condition on the body as the commands relay dlq take it: .customer.id=42, .total>=99.50, .note~^late, or .customer.vat
// for one that is there.
func ParseBodyMatch(s string) (BodyMatch, error) { return dlq.ParseBodyMatch(s) }
