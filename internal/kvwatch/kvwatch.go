// Package kvwatch reads key-value buckets to their end, and ends watches of them. nats.go leaves two things to its users: the
// goroutine of a watch that nobody reads stays for ever if there is no room for its next update, and a list of keys that was cut
// short (by a lost connection, or by a context that ended) looks like a whole one.
package kvwatch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// ErrCutShort is what All ends with if the watch ended before all entries had come.
var ErrCutShort = errors.New("the bucket could not be read to its end")

// All are the entries of a bucket at this moment whose keys match a filter (`>` for all), without deleted ones. It blocks for the
// server. An error, the context's among them, comes once and last: without one, all entries have come. A key that is written
// meanwhile can come twice.
func All(ctx context.Context, kv jetstream.KeyValue, filter string, opts ...jetstream.WatchOpt) iter.Seq2[jetstream.KeyValueEntry, error] {
	return func(yield func(jetstream.KeyValueEntry, error) bool) {
		w, err := kv.Watch(ctx, filter, append(opts, jetstream.IgnoreDeletes())...)
		if err != nil {
			yield(nil, err)
			return
		}
		defer Stop(w)
		for {
			select {
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			case e, open := <-w.Updates():
				switch {
				case ctx.Err() != nil: // which ends the subscription, too
					yield(nil, context.Cause(ctx))
					return
				case !open:
					yield(nil, fmt.Errorf("bucket %s: %w", kv.Bucket(), ErrCutShort))
					return
				case e == nil: // all that was there has come
					return
				case !yield(e, nil):
					return
				}
			}
		}
	}
}

// Keys are the keys that All gives, sorted, each once. The server does not send the values. It begins anew when the connection is lost meanwhile:
// nats.go notices after 10 s only that the rest does not come.
func Keys(ctx context.Context, nc *nats.Conn, kv jetstream.KeyValue, filter string) ([]string, error) {
	return transient.Ask(ctx, nc, func(ctx context.Context) ([]string, error) { return keys(ctx, kv, filter) })
}

func keys(ctx context.Context, kv jetstream.KeyValue, filter string) ([]string, error) {
	var keys []string
	for e, err := range All(ctx, kv, filter, jetstream.MetaOnly()) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, e.Key())
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Stop ends a watch without waiting. nats.go removes the consumer of a watch when it ends: it waits for 5 s when nobody answers, as when the server of
// that consumer is gone.
func Stop(w jetstream.KeyWatcher) {
	go func() { _ = w.Stop() }()
	go func() {
		for range w.Updates() { // nats.go closes it once the subscription has ended
		}
	}()
}
