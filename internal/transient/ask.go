package transient

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
)

// Ask asks a server something over a connection, and asks again when the connection was lost meanwhile: the answer to what was asked over the one
// before does not come, and nats.go waits for it until ctx is done. What is asked must be good to ask twice, such as to read something.
func Ask[T any](ctx context.Context, nc *nats.Conn, ask func(ctx context.Context) (T, error)) (T, error) {
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	for {
		call, cancel := context.WithCancel(ctx)
		over := make(chan struct{})
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			select {
			case <-over:
			case <-connected: // again, or it is closed for good
				cancel()
			}
		}()
		answer, err := ask(call)
		close(over)
		<-watched
		lost := errors.Is(err, context.Canceled) && call.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) // what a flush says of a connection that was lost
		again := lost && ctx.Err() == nil && !nc.IsClosed()
		cancel()
		if !again {
			return answer, err
		}
	}
}

// Do is [Ask] for what gives nothing back but an error. It must be good to do twice, from its beginning.
func Do(ctx context.Context, nc *nats.Conn, do func(ctx context.Context) error) error {
	_, err := Ask(ctx, nc, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}
