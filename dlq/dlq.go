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
	"regexp"
	"time"

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
	return func(yield func(Entry, error) bool) {
		for e, err := range s.entries.List(ctx, dlq.Filter(f)) {
			if !yield(entryOf(e), err) {
				return
			}
		}
	}
}

// Count is how many entries match, and how many there are that cannot be read. When the filter says no more than Route, Subject, Since and After, the
// server counts, and what cannot be read is among the entries.
func (s *Store) Count(ctx context.Context, f Filter) (entries, unreadable int, err error) {
	return s.entries.Count(ctx, dlq.Filter(f))
}

// Get reads one entry with its body, by its sequence in the stream of dead letters. The error is [ErrNotFound] when there is none, and an
// [*EntryError] when it cannot be read. On a replicated stream it may be moments behind.
func (s *Store) Get(ctx context.Context, sequence uint64) (Entry, error) {
	e, err := s.entries.Get(ctx, sequence)
	return entryOf(e), err
}

// Replay hands an entry to the route that failed, with its body and headers as they were and with new attempts, and removes it when that is
// confirmed. No other consumer of the stream sees the message. Of the entry it uses where it is stored and where it came from: it may be of a listing
// without bodies.
//
// When the error is [ErrNotFound] somebody else replayed or discarded it. [ErrRefused], [ErrTooLarge] and [ErrNoBody] say that it cannot be replayed,
// [ErrNotRemoved] that it was handed over and could not be removed. After any other error the entry is still there, and the message may have been
// handed over or not: a second replay within 10 minutes does not deliver it twice.
func (s *Store) Replay(ctx context.Context, e Entry) error {
	return s.entries.Replay(ctx, e.entry(), dlq.Target{})
}

// Publish is [Store.Replay] to a subject, as a new message that every consumer of its stream sees; empty: the subject on which the message was published
// first. Headers named Nats-… stay behind. The dedupe window of that stream says for how long a second one is no second message.
func (s *Store) Publish(ctx context.Context, e Entry, subject string) error {
	if subject == "" {
		subject = dlq.ToOriginal
	}
	return s.entries.Replay(ctx, e.entry(), dlq.Target{Subject: subject})
}

// Discard removes an entry, readable or not, with its body. The error is [ErrNotFound] when there is none.
func (s *Store) Discard(ctx context.Context, sequence uint64) error {
	return s.entries.Discard(ctx, sequence)
}

// Filter says which entries are meant. The zero value means all.
type Filter struct {
	// Route is a name. It and Subject are matched by the server.
	Route string
	// Subject is a pattern for the original subject, with * and > as in NATS.
	Subject string
	Reason  Reason
	// Since and Until bound the time at which the entry was stored: from Since, before Until. Zero means no bound.
	Since time.Time
	Until time.Time
	// Text must be part of the last error, and Match must match it.
	Text  string
	Match *regexp.Regexp
	// Fingerprint is that of the last error, as relay dlq ls --group-by error --json shows it.
	Fingerprint string
	// MinAttempts and MaxAttempts bound the attempts. Zero means no bound.
	MinAttempts int
	MaxAttempts int
	// Body are conditions on the body, all of which must be met. They cost the transfer of the bodies.
	Body []BodyMatch
	// After is the sequence of the last entry of the page before.
	After uint64
	// Limit is how many entries to list at most. Zero means all.
	Limit int
	// WithBody fetches Header and Data as well, which costs their transfer.
	WithBody bool
	// Looked is called for each entry that is read, whether it matches or not. It may be nil.
	Looked func()
}

// Config says how long dead letters are kept, how many, and what happens when there is no room.
type Config struct {
	// MaxAge removes older entries. Zero means never.
	MaxAge time.Duration
	// MaxBytes bounds the stream, and the bucket for large bodies once more. Zero means no bound.
	MaxBytes int64
	// MaxMsgs bounds the number of entries. Zero means no bound.
	MaxMsgs int64
	// OnFull is block (default: new ones are refused, and the messages wait in their own stream) or [OnFullDropOldest].
	OnFull string
}

// OnFullDropOldest is what [Config].OnFull says when the oldest entries go to make room for new ones.
const OnFullDropOldest = dlq.OnFullDropOldest

// Job is a replay of many entries by a running relay: of Numbers, or of what matches Filter when the job begins. A rate below 0, a percentage of 100
// or more, and Staged, StopAfter or Wait beside Subject are errors.
type Job struct {
	Filter  Filter
	Numbers []uint64 // sequences in the stream of dead letters
	// Subject is where each message is published as a new one that every consumer of its stream sees; empty: it is handed to the route that failed,
	// and no other consumer sees it.
	Subject string
	// Rate is entries a second. Zero: as fast as it goes.
	Rate float64
	// Staged hands over 1 message, then 10, then 100, then the rest, and waits after each stage for what becomes of its messages.
	Staged bool
	// StopAfter is the percentage of messages that fail again which stops the job. Zero: none does.
	StopAfter float64
	// Wait has the job wait at its end for what becomes of all messages. Staged and StopAfter do so by themselves.
	Wait bool
}

// Progress is how far a job is.
type Progress struct {
	// ID is what the command relay replay knows the job by. Empty: nothing was to do.
	ID string
	// Total is how many entries were chosen, by Routes, stored from Oldest to Newest.
	Total          int
	Routes         map[string]int
	Oldest, Newest time.Time
	// Handed entries were handed over and removed; Gone ones were removed by somebody else; Refused ones stay.
	Handed, Gone, Refused int
	// Reasons are those of all that were refused, with how many entries each has; at most 20.
	Reasons map[string]int
	// Succeeded and Failed count the first outcomes of what was handed over, as far as the job waits for them. Lost ones were handled, and how is not
	// known, for example because a relay was killed before it had said so.
	Succeeded, Failed, Lost int
}

type (
	// BodyMatch is a condition on a body that is JSON, which [ParseBodyMatch] reads.
	BodyMatch = dlq.BodyMatch
	// EntryError is about a stored message that cannot be read as an entry: Sequence is its number in the stream of dead letters, and Err says why.
	EntryError = dlq.EntryError
	// Reason is why a message is dead, a string.
	Reason = dlq.Reason
	// StoppedError says why a job stopped by itself: Job is its id, and Err the reason. The command relay replay resume has it go on.
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
