package dlq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// metaOriginal marks the object with the first body of an entry that was edited for a replay.
const metaOriginal = "relay-original"

// originalAge is how long a first body is kept after its replay: as long as the job that knows of it.
const originalAge = jobAge

func originalName(job string) string { return "original-" + job }

// KeepOriginal stores the body and headers of e before a replay with another body, see [Target]. They are kept for 30 days.
func (s *Store) KeepOriginal(ctx context.Context, job string, e Entry) error {
	ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
	defer cancel()
	bucket, err := s.js.ObjectStore(ctx, s.Bucket())
	if err != nil {
		return fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	_, err = bucket.Put(ctx, jetstream.ObjectMeta{
		Name:     originalName(job),
		Metadata: map[string]string{metaOriginal: time.Now().UTC().Format(time.RFC3339)},
		Opts:     &jetstream.ObjectMetaOptions{ChunkSize: uint32(min(128<<10, s.js.Conn().MaxPayload()))},
	}, bytes.NewReader(encodeBody(e.Header, e.Data)))
	if err != nil {
		return fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	return nil
}

// Original is what KeepOriginal stored. It returns an error that is [ErrNoBody] when there is none (any more).
func (s *Store) Original(ctx context.Context, job string) (nats.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
	defer cancel()
	bucket, err := s.js.ObjectStore(ctx, s.Bucket())
	if err != nil {
		return nil, nil, fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	blob, err := bucket.GetBytes(ctx, originalName(job))
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, jetstream.ErrDigestMismatch):
		return nil, nil, fmt.Errorf("%w: the first body of job %s", ErrNoBody, job)
	case err != nil:
		return nil, nil, classify(err)
	}
	return decodeBody(blob)
}
