package catchup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/transient"
)

// Book are the records of a service. They are in the bucket of the ledger.
type Book struct{ kv jetstream.KeyValue }

// NewBook is that of a ledger; nil: there is none.
func NewBook(ledger *audit.Book) *Book {
	if ledger == nil {
		return nil
	}
	return &Book{ledger.KV()}
}

// Get is the record of a durable; nil when there is none. One of a newer version of relay is an error.
func (b *Book) Get(ctx context.Context, stream, durable string) (*Record, error) {
	r, _, err := b.get(ctx, stream, durable)
	return r, err
}

func (b *Book) get(ctx context.Context, stream, durable string) (*Record, uint64, error) {
	e, err := b.kv.Get(ctx, audit.CatchUpKey(stream, durable))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	r := new(Record)
	if err := json.Unmarshal(e.Value(), r); err != nil {
		return nil, 0, fmt.Errorf("cannot read the record of what durable %s of stream %s has passed: %w", durable, stream, err)
	}
	if r.Format > format {
		return nil, 0, fmt.Errorf("the record of what durable %s of stream %s has passed was written by a newer version of relay (format %d): use that version", durable, stream, r.Format)
	}
	return r, e.Revision(), nil
}

// Change changes the record of a durable, again when somebody else was first. The function gets nil when there is none, and returns what to store:
// nil to remove it. An error of the function ends it.
func (b *Book) Change(ctx context.Context, stream, durable string, change func(*Record) (*Record, error)) (*Record, error) {
	key := audit.CatchUpKey(stream, durable)
	for {
		was, revision, err := b.get(ctx, stream, durable)
		if err != nil {
			return nil, err
		}
		there := was != nil
		next, err := change(was)
		if err != nil {
			return nil, err
		}
		switch {
		case next == nil && !there:
			return nil, nil
		case next == nil:
			err = b.kv.Purge(ctx, key, jetstream.LastRevision(revision))
		default:
			next.Format = format
			var value []byte
			if value, err = json.Marshal(next); err != nil {
				return nil, err
			}
			if there {
				_, err = b.kv.Update(ctx, key, value, revision)
			} else {
				_, err = b.kv.Create(ctx, key, value)
			}
		}
		if transient.Raced(err) && ctx.Err() == nil {
			continue
		}
		return next, err
	}
}
