package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/internal/transient"
)

// callTimeout is longer than a leader election usually takes.
const callTimeout = 5 * time.Second

// Put stores e under the prefix (empty: <service>.dlq) and returns nil once the server has it, or had it already: a
// second Put of the same origin and replay count, by anyone and at any time while the first entry is there, is success
// and stores nothing.
//
// Any error means that nothing is proven: the caller keeps the original unacknowledged and calls again later. Put does
// not try again by itself. [ErrFull], [ErrNoStream], [ErrWrongStream], [ErrConflict] and [ErrTooLarge] say what an operator
// has to look at. When ctx ends, Put returns its cause at once; the entry may be stored nevertheless.
func (s *Store) Put(ctx context.Context, prefix string, e Entry) error {
	e.Instance = cmp.Or(e.Instance, s.instance)
	_, err := s.put(ctx, prefix, e)
	if s.dropOldest && errors.Is(err, ErrFull) {
		return s.putInsteadOfOldest(ctx, prefix, e, err)
	}
	return err
}

// Has tells whether the entry of a failure is stored, as Put would store it: false also when it was replayed or discarded since. The leader is
// asked.
func (s *Store) Has(ctx context.Context, prefix string, o Origin) (bool, error) {
	subj, err := entrySubject(cmp.Or(prefix, s.service+".dlq"), o)
	if err != nil {
		return false, fmt.Errorf("dead-letter subject: %w", err)
	}
	m, err := s.last(ctx, s.Name(), subj)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, or(ctx, err)
	}
	e, err := decode(m.Header)
	if err != nil {
		return false, fmt.Errorf("%w: sequence %d on %q: %w", ErrConflict, m.Sequence, subj, err)
	}
	return same(e.Origin, o), nil
}

// Import is Put for an entry that was exported: it goes where it was, if the stream still has that prefix, keeps the
// instance that wrote it, and never drops others. It reports false when the entry was there already. A replay of it is a replay of its own,
// also when the same entry was replayed shortly before.
func (s *Store) Import(ctx context.Context, e Entry) (stored bool, err error) {
	prefix := e.wantPrefix
	if !slices.Contains(s.stream.CachedInfo().Config.Subjects, prefix+".>") {
		prefix = ""
	}
	e.imported = nuid.Next()
	return s.put(ctx, prefix, e)
}

// put reports whether this call is known to have stored the entry.
func (s *Store) put(ctx context.Context, prefix string, e Entry) (stored bool, err error) {
	subj, err := entrySubject(cmp.Or(prefix, s.service+".dlq"), e.Origin)
	if err != nil {
		return false, fmt.Errorf("dead-letter subject: %w", err)
	}
	m, err := s.entryMsg(ctx, subj, e)
	if err != nil {
		return false, or(ctx, err)
	}
	pub, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	// One that was stored although its confirmation was lost with the connection is refused the next time, and read back.
	ack, err := transient.Ask(pub, s.js.Conn(), func(ctx context.Context) (*jetstream.PubAck, error) { return s.js.PublishMsg(ctx, m) })
	switch {
	case err == nil && ack.Stream == s.Name():
		s.book.stored(ack.Sequence)
		return true, nil
	case err == nil:
		return false, fmt.Errorf("%w: %s stored %q", ErrWrongStream, ack.Stream, subj)
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case unsent(err), errors.Is(err, jetstream.ErrNoStreamResponse):
		return false, classify(err)
	}
	// From here the entry may be there: stored by this call whose answer is lost, by an earlier one before a crash, or
	// by another instance. It is there, too, when the stream is full or the answer is one that nobody foresaw.
	stored, err = s.confirm(ctx, subj, e, classify(err))
	return stored, or(ctx, err)
}

// How often, and after what pause times the count of reads, an entry is read back that the leader knows of but has not
// stored yet.
const (
	confirmReads = 6
	confirmWait  = 20 * time.Millisecond
)

// confirm returns nil if the entry is stored, and whether by this import, else why the publish failed.
//
// A replicated stream refuses a copy as soon as a rival's is proposed, which is before the rival's can be read: then, and
// only then, it waits a moment and reads again. If the rival's never comes, the caller's next Put stores its own.
func (s *Store) confirm(ctx context.Context, subj string, e Entry, why error) (imported bool, err error) {
	m, err := s.last(ctx, s.Name(), subj)
	for reads := 1; errors.Is(err, ErrNotFound) && transient.Raced(why) && reads < confirmReads && ctx.Err() == nil; reads++ {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(reads) * confirmWait):
		}
		m, err = s.last(ctx, s.Name(), subj)
	}
	if errors.Is(err, ErrNotFound) {
		return false, why
	}
	if err != nil {
		return false, fmt.Errorf("%w (and relay could not read the entry back: %w)", why, err)
	}
	stored, err := decode(m.Header)
	if err != nil {
		return false, fmt.Errorf("%w: sequence %d on %q: %w", ErrConflict, m.Sequence, subj, err)
	}
	if !same(stored.Origin, e.Origin) {
		return false, fmt.Errorf("%w: sequence %d on %q is the dead letter of consumer %s, not of %s: replay or discard that dead letter first",
			ErrConflict, m.Sequence, subj, stored.Consumer, e.Consumer)
	}
	s.log.Debug("dead letters: the entry was stored already", "subject", subj, "sequence", m.Sequence)
	return e.imported != "" && stored.imported == e.imported, nil
}

// entryMsg builds the message of an entry, after it put what is too large into the bucket.
func (s *Store) entryMsg(ctx context.Context, subj string, e Entry) (*nats.Msg, error) {
	limit := s.js.Conn().MaxPayload()
	build := func() *nats.Msg {
		m := &nats.Msg{Subject: subj, Header: encode(e), Data: e.Data}
		m.Header.Set(jetstream.ExpectedStreamHeader, s.Name())
		if !teeth.Expect() {
			m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
		}
		return m
	}
	m := build()
	if fits(m.Header, m.Data, limit) {
		return m, nil
	}
	body, err := s.putBody(ctx, subj, e, ofLetter)
	if err != nil {
		return nil, err
	}
	e.body, e.Data = body, nil
	if m = build(); fits(m.Header, nil, limit) {
		return m, nil
	}
	// A max_payload so small that not even relay's own headers fit: the stack is what can be spared.
	e.Stack = nil
	if m = build(); fits(m.Header, nil, limit) {
		return m, nil
	}
	return nil, fmt.Errorf("%w: the headers of an entry alone exceed max_payload of %d bytes", ErrTooLarge, limit)
}
