package retry

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/inhand"
)

// inHandKey has one token less than the key of a record.
func (r *Records) inHandKey() string { return "hand." + r.stream + "." + r.durable }

// NoteInHand stores what this instance has in hand, in place of what was stored before.
func (r *Records) NoteInHand(ctx context.Context, h inhand.Snapshot) error {
	h.Created = r.created.UnixNano()
	value, err := h.MarshalBinary()
	if err == nil {
		_, err = r.bucket.kv.Put(ctx, r.inHandKey(), value)
	}
	return err
}

// InHand is what the holder noted last. The error is [jetstream.ErrKeyNotFound] when there is nothing of this durable.
func (r *Records) InHand(ctx context.Context) (h inhand.Snapshot, err error) {
	value, _, err := r.bucket.get(ctx, r.inHandKey())
	if err == nil {
		err = h.UnmarshalBinary(value)
	}
	if err == nil && h.Created != r.created.UnixNano() {
		err = jetstream.ErrKeyNotFound // of a durable that is gone
	}
	return h, err
}
