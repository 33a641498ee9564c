package dlq

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
)

var (
	// ErrFull says that the stream or the bucket is at its limit, or the server out of storage. Trying again helps once
	// an operator made room.
	ErrFull = errors.New("dead letters: no room")
	// ErrNoStream says that a stream or bucket is not there, or has no leader at the moment.
	ErrNoStream = errors.New("dead letters: no stream")
	// ErrWrongStream says that another stream takes the dead-letter subjects.
	ErrWrongStream = errors.New("dead letters: another stream answered")
	// ErrConflict says that the entry's subject holds another message.
	ErrConflict = errors.New("dead letters: the subject holds another entry")
	// ErrTooLarge says that a message does not fit into the server's max_payload and cannot be stored apart.
	ErrTooLarge = errors.New("dead letters: too large")
	// ErrNotFound says that there is no such entry (any more).
	ErrNotFound = errors.New("dead letters: no such entry")
	// ErrNoBody says that the object with the body of a large message is missing or damaged.
	ErrNoBody = errors.New("dead letters: the body is missing or damaged")
	// ErrRefused says that an entry cannot be replayed as asked; the error says why. Trying again does not help.
	ErrRefused = errors.New("dead letters: cannot be replayed this way")
	// ErrNotRemoved says that an entry was handed over, but not removed. Within the dedupe window of 10 minutes it can be
	// replayed again without a second delivery.
	ErrNotRemoved = errors.New("dead letters: replayed, but the entry is still there")
)

// EntryError is about one stored message. A listing goes on after it.
type EntryError struct {
	Sequence uint64 // in the dead-letter stream
	Err      error
}

func (e *EntryError) Error() string { return fmt.Sprintf("dead letter %d: %v", e.Sequence, e.Err) }
func (e *EntryError) Unwrap() error { return e.Err }

// ConfigError says that a stream exists with a setting under which dead letters are not safe, and which the server does not
// change.
type ConfigError = ownstream.Error

// Error codes of the server that nats.go does not name (nats-server, server/errors.json).
const (
	codeInsufficientResources jetstream.ErrorCode = 10023
	codeMemoryExceeded        jetstream.ErrorCode = 10028
	codeStorageExceeded       jetstream.ErrorCode = 10047
	codeStoreFailed           jetstream.ErrorCode = 10077 // max bytes or messages, with DiscardNew
	codeStreamNotMatch        jetstream.ErrorCode = 10060
	codeDeleteFailed          jetstream.ErrorCode = 10057
	codeSequenceNotFound      jetstream.ErrorCode = 10043
)

// classify adds the sentinel that a caller would branch on.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var api *jetstream.APIError
	sentinel := error(nil)
	switch {
	case errors.As(err, &api):
		switch api.ErrorCode {
		case codeInsufficientResources, codeMemoryExceeded, codeStorageExceeded, codeStoreFailed:
			sentinel = ErrFull
		case codeStreamNotMatch:
			sentinel = ErrWrongStream
		case jetstream.JSErrCodeStreamNotFound, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
			sentinel = ErrNoStream
		case jetstream.JSErrCodeMessageNotFound, codeSequenceNotFound:
			sentinel = ErrNotFound
		}
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders),
		errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrBucketNotFound):
		sentinel = ErrNoStream
	case errors.Is(err, jetstream.ErrMsgNotFound):
		sentinel = ErrNotFound
	case errors.Is(err, nats.ErrMaxPayload):
		sentinel = ErrTooLarge
	}
	if sentinel == nil || errors.Is(err, sentinel) {
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

// unsent tells whether a publish failed before anything reached the server.
func unsent(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg) || errors.Is(err, nats.ErrBadSubject) ||
		errors.Is(err, nats.ErrConnectionClosed)
}

// streamMissing tells whether the server said that there is no such stream, which [ErrNoStream] alone does not mean.
func streamMissing(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamNotFound
}

// or returns the error of ctx when it is over: what a caller cancelled did not fail.
func or(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
