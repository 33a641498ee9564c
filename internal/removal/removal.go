// Package removal takes single messages off streams.
package removal

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// Delete removes a message of a stream. One that is gone already is no error. The server has one error code for a message that is not there and for one that it cannot
// remove, and nats.go 1.55 hands on its text only, so the stream is asked for the message then.
func Delete(ctx context.Context, stream jetstream.Stream, sequence uint64) error {
	err := stream.DeleteMsg(ctx, sequence)
	if err == nil {
		return nil
	}
	if _, gone := stream.GetMsg(ctx, sequence); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}
