package requests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Publish publishes a message to a stream, and waits for its confirmation, as [jetstream.JetStream.PublishMsg] does, with the same
// errors: an [jetstream.APIError] is what the stream has against the message, and [jetstream.ErrNoStreamResponse] says that no stream takes
// it, nor took it a moment later.
func (r *Requester) Publish(ctx context.Context, m *nats.Msg) (jetstream.PubAck, error) {
	reply, err := r.Request(ctx, m)
	for n := 0; errors.Is(err, nats.ErrNoResponders) && n < jetstream.DefaultPubRetryAttempts; n++ {
		// A stream that changes its leader is not there for a moment.
		wait := time.NewTimer(jetstream.DefaultPubRetryWait)
		select {
		case <-ctx.Done():
			wait.Stop()
			return jetstream.PubAck{}, ctx.Err()
		case <-wait.C:
		}
		reply, err = r.Request(ctx, m)
	}
	if errors.Is(err, nats.ErrNoResponders) {
		err = jetstream.ErrNoStreamResponse
	}
	if err != nil {
		return jetstream.PubAck{}, err
	}
	var answer struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(reply.Data, &answer); {
	case err != nil:
		return jetstream.PubAck{}, jetstream.ErrInvalidJSAck
	case answer.Error != nil:
		return jetstream.PubAck{}, fmt.Errorf("nats: %w", answer.Error)
	case answer.Stream == "":
		return jetstream.PubAck{}, jetstream.ErrInvalidJSAck
	}
	return answer.PubAck, nil
}
