package engine

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/archive"
)

// newArchive is nil when nothing is kept.
func newArchive(r *Engine) *archive.Writer {
	if r.Config.Archive == nil {
		return nil
	}
	return archive.New(archive.Config{
		Service: r.Config.Service, Instance: r.Config.Instance, Logger: r.Log, MaxPayload: r.Conn.MaxPayload,
		Publish: func(ctx context.Context, m *nats.Msg) error {
			_, err := r.JS.PublishMsg(ctx, m, jetstream.WithExpectStream(archive.StreamName(r.Config.Service)))
			if errors.Is(err, jetstream.ErrNoStreamResponse) {
				return errors.Join(err, r.Stores.EnsureArchive(ctx)) // for the next try: somebody deleted the stream
			}
			return err
		},
	})
}
