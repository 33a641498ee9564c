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

	"github.com/relaymq/relay/ack"
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
	now, err := s.read(ctx, m, to.Subject != "")
	if err != nil {
		return or(ctx, err)
	}
	if m.subject != e.StoredSubject || !same(now.Origin, e.Origin) {
		return fmt.Errorf("%w: sequence %d holds another one now", ErrNotFound, e.StoredSequence)
	}
	if to.Subject == "" {
		if now.body.name == "" { // its headers and body came with it
			_, now.Header, err = ack.Unwrap(m.header)
			now.Data = m.data
		}
		if err == nil {
			err = s.toRoute(ctx, now, to.Job)
		}
	} else {
		err = s.toSubject(ctx, now, cmpOriginal(to.Subject, now.Subject))
	}
	if err != nil {
		return or(ctx, err)
	}
	err = s.remove(ctx, s.Name(), now.StoredSequence)
	if err != nil && !errors.Is(err, ErrNotFound) { // gone: a rival replay, of which this one was the duplicate, or a discard
		return fmt.Errorf("%w: sequence %d: %w", ErrNotRemoved, now.StoredSequence, err)
	}
	return nil
}

func cmpOriginal(to, original string) string {
	if to == ToOriginal {
		return original
	}
	return to
}

// messageID tells the replays of one entry from those of every other.
func messageID(o ack.Origin) string {
	return fmt.Sprintf("%s_%s_%d_%d", o.Route, o.ID(), o.Time.UnixNano(), o.Replay)
}

// replayed is the origin with which a message starts anew.
func replayed(o ack.Origin) ack.Origin {
	o.Replay++
	o.Attempts, o.Deliveries, o.LastError = 0, 0, ""
	o.FirstFailure, o.LastFailure = time.Time{}, time.Time{}
	return o
}

func (s *Store) toRoute(ctx context.Context, e Entry, job string) error {
	o := replayed(e.Origin)
	o.Job = job
	stream := retryName(s.service)
	build := func() *nats.Msg {
		m := &nats.Msg{Subject: s.dueSubject(o), Data: e.Data}
		if e.body.name != "" {
			m.Header = ack.Wrap(o, nil)
			e.body.set(m.Header)
		} else {
			m.Header = ack.Wrap(o, e.Header)
		}
		m.Header.Set(jetstream.MsgIDHeader, messageID(o))
		m.Header.Set(jetstream.ExpectedStreamHeader, stream)
		return m
	}
	limit := s.js.Conn().MaxPayload()
	if e.body.name != "" {
		if err := s.touch(ctx, e.body.name, true); err != nil {
			return err
		}
	} else if m := build(); !fits(m.Header, m.Data, limit) {
		// max_payload was lowered since, or the job's id is what is too much.
		body, err := s.putBody(ctx, e.StoredSubject, e, true)
		if err != nil {
			return err
		}
		e.body, e.Data = body, nil
	}
	m := build()
	if !fits(m.Header, m.Data, limit) {
		return fmt.Errorf("%w: the headers of a replay alone exceed max_payload of %d bytes", ErrTooLarge, limit)
	}
	pub, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	got, err := s.js.PublishMsg(pub, m)
	if err != nil {
		return fmt.Errorf("hand over to stream %s: %w", stream, classify(err))
	}
	if got.Stream != stream {
		return fmt.Errorf("%w: %s took the replay instead of %s", ErrWrongStream, got.Stream, stream)
	}
	return nil
}

func (s *Store) toSubject(ctx context.Context, e Entry, to string) error {
	if err := subject.ValidateLiteral(to); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return classify(err)
	}
	for _, own := range slices.Concat(info.Config.Subjects, []string{s.service + ".due.>", s.service + ".park.>"}) {
		if subject.Matches(own, to) {
			return fmt.Errorf("%w: %q lies in relay's own %s", ErrRefused, to, own)
		}
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
	h.Set(jetstream.MsgIDHeader, messageID(replayed(e.Origin))+"_"+hex.EncodeToString(sum[:8]))
	m := &nats.Msg{Subject: to, Header: h, Data: e.Data}
	pub, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err = s.js.PublishMsg(pub, m)
	switch {
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return fmt.Errorf("%w: a header has a name that this client cannot send (one of %q)", ErrRefused, slices.Sorted(maps.Keys(h)))
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: it does not fit into max_payload with its headers: replay it to its route", ErrTooLarge)
	case err != nil:
		return fmt.Errorf("publish to %q: %w", to, classify(err))
	}
	return nil
}
