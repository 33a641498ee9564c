package dlq

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// ToOriginal as [Target.Subject] is the subject on which the message was first published.
const ToOriginal = "original"

// Target is where a replay sends an entry. The zero value is the route that failed.
type Target struct {
	// Subject, when set, is published to instead of the route, for every consumer of its stream to see. [ToOriginal] means
	// the original one.
	Subject string
	// Job is the id of the replay job, which the message carries to its route.
	Job string
	// Edited takes the place of the body unless it is nil. The first body must have been kept with
	// [Store.KeepOriginal] before.
	Edited []byte
}

// Replay hands an entry on and removes it once the hand-over is confirmed. Of e it uses only where it is stored and its
// origin: the rest is read again, so e may come from a listing without bodies.
//
// To its route, the message goes with its origin, body and headers as they were, no attempts, and a replay count one
// higher. To a subject, it goes as a new message with its body and headers but for those named Nats-…, and with the replay's
// own message id. In both cases a second hand-over within the stream's dedupe window (10 minutes for routes) counts
// as done and delivers nothing twice.
//
// An error that is [ErrNotFound] says that the entry is gone: replayed or discarded by another. [ErrRefused], [ErrTooLarge] and
// [ErrNoBody] say that it cannot be replayed this way, [ErrNotRemoved] that only its removal failed. After any error but
// the last one the entry is still there, and the message may or may not have been delivered.
func (s *Store) Replay(ctx context.Context, e Entry, to Target) error {
	m, err := s.get(ctx, e.StoredSequence)
	if err != nil {
		return or(ctx, err)
	}
	h, err := s.prepare(ctx, m, e.isAt, to)
	if err != nil {
		return or(ctx, err)
	}
	pub, cancel := context.WithTimeout(ctx, s.timeout)
	got, err := s.js.PublishMsg(pub, h.msg)
	cancel()
	if err := h.confirmed(got, err); err != nil {
		return or(ctx, err)
	}
	return s.handedOver(ctx, h)
}

// handOver is a replay that is ready to be published.
type handOver struct {
	msg    *nats.Msg
	stream string // that must take it; empty: any
	seq    uint64 // of the entry
	edited bool
	token  string // [MessageToken] of what goes to a route
}

// isAt tells whether e is what is stored.
func (e Entry) isAt(storedSubject string, now Entry) bool {
	return storedSubject == e.StoredSubject && same(now.Origin, e.Origin)
}

// prepare builds the message of the replay of what is stored, if it is still the entry that is meant.
func (s *Store) prepare(ctx context.Context, m stored, meant func(storedSubject string, now Entry) bool, to Target) (handOver, error) {
	var now Entry
	var err error
	if to.Subject != "" {
		now, err = s.read(ctx, m)
	} else {
		now, err = m.entry()
	}
	if err != nil {
		return handOver{}, err
	}
	if !meant(m.subject, now) {
		return handOver{}, fmt.Errorf("%w: sequence %d holds another entry now", ErrNotFound, m.sequence)
	}
	h := handOver{seq: now.StoredSequence, edited: to.Edited != nil}
	if to.Subject != "" {
		if h.edited {
			now.Data = to.Edited
		}
		h.msg, err = s.toSubject(now, cmpOriginal(to.Subject, now.Subject))
		return h, err
	}
	why, err := s.untaken(ctx, now.Route, now.Stream)
	if err == nil && why != "" {
		err = fmt.Errorf("%w: %s", ErrRefused, why)
	}
	if err != nil {
		return handOver{}, err
	}
	switch {
	case now.body.name == "": // its headers and body came with it
		_, now.Header, err = retry.Unwrap(m.header)
		now.Data = m.data
	case h.edited:
		now.Header, _, err = s.loadBody(ctx, now.body)
	}
	if err != nil {
		return handOver{}, err
	}
	if h.edited {
		now.Edited, now.Data, now.body = to.Job, to.Edited, ref{}
	}
	h.stream, h.token = retryName(s.service), MessageToken(replayed(now))
	h.msg, err = s.toRoute(ctx, now, to.Job)
	return h, err
}

// confirmed turns the answer to the publishing of h into what it means.
func (h handOver) confirmed(got *jetstream.PubAck, err error) error {
	to := h.msg.Subject
	switch {
	case err == nil && h.stream != "" && got.Stream != h.stream:
		return fmt.Errorf("%w: %s stored the replay instead of %s", ErrWrongStream, got.Stream, h.stream)
	case err == nil && h.edited && got.Duplicate:
		return errFirstBody
	case err == nil:
		return nil
	case h.stream != "":
		return fmt.Errorf("hand over to stream %s: %w", h.stream, classify(err))
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return fmt.Errorf("%w: a header has a name that this client cannot send (one of %q)", ErrRefused, slices.Sorted(maps.Keys(h.msg.Header)))
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: it does not fit into max_payload with its headers: replay it to its route", ErrTooLarge)
	}
	return fmt.Errorf("publish to %q: %w", to, classify(err))
}

// own returns nil when what the stream has instead of a second copy of h is h, as it was published before without an answer: not the message with its
// first body, of the same id. What was taken since is h: nobody else publishes it in the moment between.
func (s *Store) own(ctx context.Context, h handOver, got *jetstream.PubAck) error {
	if h.stream == "" || got.Stream != h.stream {
		return nil // a stream that operators may not read
	}
	m, err := s.ask(ctx, got.Stream, map[string]uint64{"seq": got.Sequence})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hand over to stream %s: %w", h.stream, err)
	}
	o, _, err := retry.Unwrap(m.Header)
	if mine, _, failed := retry.Unwrap(h.msg.Header); err != nil || failed != nil || o.Edited != mine.Edited {
		return errFirstBody
	}
	return nil
}

// errFirstBody is why an edited body cannot be handed over: it would be dropped as a duplicate.
var errFirstBody = fmt.Errorf("%w: it was handed over with its first body within the last 10 minutes", ErrRefused)

// handedOver removes the entry of a replay that is confirmed.
func (s *Store) handedOver(ctx context.Context, h handOver) error {
	err := s.take(ctx, h.seq)
	if err != nil && !errors.Is(err, ErrNotFound) { // gone: a rival replay, of which this one was the duplicate, or a discard
		return fmt.Errorf("%w: sequence %d: %w", ErrNotRemoved, h.seq, err)
	}
	return nil
}

func cmpOriginal(to, original string) string {
	if to == ToOriginal {
		return original
	}
	return to
}

// messageID tells the replay of e with the origin o from those of every other entry. One that was replayed, and imported again, is another entry: the
// server would drop its replay as a duplicate for 10 minutes.
func messageID(e *Entry, o Origin) string {
	id := fmt.Sprintf("%s_%s_%d_%d", o.Route, o.ID(), o.Time.UnixNano(), o.Replay)
	if e.imported != "" {
		id += "_" + e.imported
	}
	return id
}

// replayed is the origin with which the message of e starts anew.
func replayed(e Entry) Origin {
	o := e.Origin
	failed := o.LastFailure
	if failed.IsZero() {
		failed = e.StoredTime
	}
	o.Remember(retry.Past{Replay: o.Replay, Job: o.Job, Time: failed, Attempts: o.Attempts, Reason: string(e.Reason), Error: o.LastError})
	o.Replay++
	o.Attempts, o.Deliveries, o.Returns, o.LastError = 0, 0, 0, ""
	o.Due, o.FirstFailure, o.LastFailure = time.Time{}, time.Time{}, time.Time{}
	return o
}

func (s *Store) toRoute(ctx context.Context, e Entry, job string) (*nats.Msg, error) {
	o := replayed(e)
	o.Job = job
	build := func() *nats.Msg {
		m := &nats.Msg{Subject: s.dueSubject(o), Data: e.Data}
		if e.body.name != "" {
			m.Header = retry.Wrap(o, nil)
			e.body.set(m.Header)
		} else {
			m.Header = retry.Wrap(o, e.Header)
		}
		m.Header.Set(jetstream.MsgIDHeader, messageID(&e, o))
		m.Header.Set(jetstream.ExpectedStreamHeader, retryName(s.service))
		return m
	}
	limit := s.js.Conn().MaxPayload()
	m := build()
	if e.body.name != "" {
		if err := s.touch(ctx, e.body.name, s.dueSubject(o)); err != nil {
			return nil, err
		}
	} else if !fits(m.Header, m.Data, limit) {
		// max_payload was lowered since, or the job's id or the history is what is too much.
		body, err := s.putBody(ctx, e.StoredSubject, e, ofReplay)
		if err != nil {
			return nil, err
		}
		e.body, e.Data = body, nil
		m = build()
	}
	if !fits(m.Header, m.Data, limit) {
		return nil, fmt.Errorf("%w: the headers of a replay alone exceed max_payload of %d bytes", ErrTooLarge, limit)
	}
	return m, nil
}

// publishable returns an error that is [ErrRefused] and says why nothing can be replayed to a subject, or nil.
func (s *Store) publishable(to string) error {
	if err := subject.ValidateLiteral(to); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	owned := slices.Concat(s.stream.CachedInfo().Config.Subjects, subject.Reserved(s.service))
	if inboxes, ok := subject.Inboxes(s.js.Conn().Opts.InboxPrefix); ok {
		owned = append(owned, inboxes)
	}
	for _, own := range owned {
		if subject.Matches(own, to) {
			return fmt.Errorf("%w: %q lies in relay's own %s", ErrRefused, to, own)
		}
	}
	return nil
}

func (s *Store) toSubject(e Entry, to string) (*nats.Msg, error) {
	if err := s.publishable(to); err != nil {
		return nil, err
	}
	h := make(nats.Header, len(e.Header)+1)
	for name, values := range e.Header {
		if len(name) >= 5 && strings.EqualFold(name[:5], "Nats-") {
			continue
		}
		h[name] = values
	}
	// The target is part of the id: a hand-over to another subject is not a duplicate of this one.
	sum := sha256.Sum256([]byte(to))
	h.Set(jetstream.MsgIDHeader, messageID(&e, replayed(e))+"_"+hex.EncodeToString(sum[:8]))
	return &nats.Msg{Subject: to, Header: h, Data: e.Data}, nil
}
