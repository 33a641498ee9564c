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
		again := errors.Is(err, context.Canceled) && call.Err() != nil && ctx.Err() == nil && !nc.IsClosed()
		cancel()
		if !again {
			return answer, err
		}
	}
}
