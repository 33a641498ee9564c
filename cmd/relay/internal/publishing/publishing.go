// Package publishing stores messages for the commands that publish.
package publishing

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

// ErrNoStream says that no stream holds the subject.
var ErrNoStream = errors.New("no stream holds the subject")

// jsErrStreamFull is what a stream with a limit and DiscardNew answers: "maximum messages exceeded" and its like.
const jsErrStreamFull = 10077

// publishBackoff paces the tries while a stream is full.
var publishBackoff = supervisor.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}.WithRetryDefaults()

// Publish publishes m and returns when a stream has stored it. A stream that is full (it has limits and discards new
// messages) is tried again with backoff, 100ms to 5s, until ctx is done; the error is then the stream's. Other errors are
// returned at once: [ErrNoStream] when nobody answers. A time-out proves nothing, nor does [nats.ErrDisconnected], which says that the
// connection was lost before the answer: the message may be stored, see [Unknown]. Set Nats-Msg-Id to publish it again without a second copy.
func Publish(ctx context.Context, js jetstream.JetStream, m *nats.Msg) (*jetstream.PubAck, error) {
	for n := 0; ; n++ {
		var ack *jetstream.PubAck
		err := transient.Once(ctx, js.Conn(), func(ctx context.Context) (err error) {
			ack, err = js.PublishMsg(ctx, m)
			return err
		})
		if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
			return nil, ErrNoStream
		}
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != jsErrStreamFull {
			return ack, err
		}
		transient.Pause(ctx, publishBackoff.Delay(n))
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// Unknown tells whether an error of a publish leaves open whether the message is stored.
func Unknown(err error) bool {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrDisconnected, nats.ErrConnectionClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
