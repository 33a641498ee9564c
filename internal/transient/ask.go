package transient

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
)

// Ask asks a server something over a connection, and asks again when the connection was lost meanwhile: the answer to what was asked over the one
// before does not come, and nats.go waits for it until ctx is done. What is asked must be good to ask twice, such as to read something.
func Ask[T any](ctx context.Context, nc *nats.Conn, ask func(ctx context.Context) (T, error)) (T, error) {
	for {
		answer, lost, err := once(ctx, nc, ask)
		if !lost {
			return answer, err
		}
	}
}

// Do is [Ask] for what gives nothing back but an error. It must be good to do twice, from its beginning.
func Do(ctx context.Context, nc *nats.Conn, do func(ctx context.Context) error) error {
	_, err := Ask(ctx, nc, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

// Once does something once. When the connection was lost meanwhile it ends as soon as there is another one, with [nats.ErrDisconnected].
func Once(ctx context.Context, nc *nats.Conn, do func(ctx context.Context) error) error {
	_, lost, err := once(ctx, nc, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	if lost {
		return nats.ErrDisconnected
	}
	return err
}

// once tells whether the connection was lost meanwhile, and the answer with it.
func once[T any](ctx context.Context, nc *nats.Conn, ask func(ctx context.Context) (T, error)) (answer T, lost bool, err error) {
	call, cancel := UntilBack(ctx, nc)
	defer cancel()
	answer, err = ask(call)
	lost = errors.Is(err, context.Canceled) && call.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) // what a flush says of a connection that was lost
	return answer, lost && ctx.Err() == nil && !nc.IsClosed(), err
}

// UntilBack is ctx until there is a connection again after it was lost, or until it is closed for good: what waits for an answer over the one before waits
// in vain from then on. The function that it returns releases what that takes, and must be called.
func UntilBack(ctx context.Context, nc *nats.Conn) (context.Context, context.CancelFunc) {
	connected := nc.StatusChanged(nats.CONNECTED)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer nc.RemoveStatusListener(connected)
		select {
		case <-ctx.Done():
		case <-connected: // again, or it is closed for good
			cancel()
		}
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}
