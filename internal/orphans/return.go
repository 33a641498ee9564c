package orphans

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// Return makes dead letters of what waits in the retry stream for a route from one stream, parked or due: also of what was replayed
// to it, and of what it would get only if it read that stream. Each is stored before it is taken out, so that nothing is lost when this is
// interrupted, and another call goes on. prefix is that of the route's dead letters (empty: the usual one), and by is noted as the
// instance that gave them up. returned, if not nil, is told of each. It returns how many there were, with an error that ended it.
func Return(ctx context.Context, js jetstream.JetStream, service, route, stream, prefix, by string, returned func(retry.Parked)) (int, error) {
	service = cmp.Or(service, "relay")
	retries, err := retry.AttachStream(ctx, js, service, retry.StreamName(service))
	if err != nil {
		return 0, err
	}
	if consumed(ctx, js, retries.Name(), route, stream) {
		return 0, fmt.Errorf("an instance of relay runs route %s on stream %s and handles these messages; to make dead letters of them, use relay retries discard", route, stream)
	}
	store, err := dlq.Attach(ctx, js, service)
	if err != nil {
		return 0, err
	}
	return retries.TakeOut(ctx, route, stream, func(p retry.Parked) error {
		e := dlq.Entry{Origin: p.Origin, Reason: dlq.Operator, Instance: by, Header: p.Header, Data: p.Data}
		if e.LastError == "" {
			e.LastError = fmt.Sprintf("no instance takes what waits for route %s of stream %s: taken back from the retry stream", route, stream)
		}
		if dlq.BodyElsewhere(p.Wrapped()) {
			var err error
			if e.Header, e.Data, err = store.Body(ctx, p.Wrapped()); err != nil {
				return err
			}
		}
		err := store.Put(ctx, prefix, e)
		if err == nil && returned != nil {
			returned(p)
		}
		return err
	})
}
