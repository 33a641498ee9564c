package ownstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// Bucket is the stream of a key-value bucket with one value for each key, as nats.go makes it. Zero ttl means that values
// are kept for ever.
func Bucket(name string, replicas int, ttl time.Duration) jetstream.StreamConfig {
	window := 2 * time.Minute
	if ttl > 0 {
		window = min(window, ttl)
	}
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage,
		Replicas: replicas, MaxAge: ttl, MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, Discard: jetstream.DiscardNew,
		AllowRollup: true, AllowDirect: true, DenyDelete: true, Duplicates: window,
	}
}

// OpenBucket opens a bucket, and makes it like that when it is missing. One that others have made meanwhile is opened, whatever its settings. When the
// connection is lost meanwhile it asks again, and so does Get; see [transient.Ask].
func OpenBucket(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := transient.Ask(ctx, js.Conn(), func(ctx context.Context) (jetstream.KeyValue, error) { return openOrMake(ctx, js, cfg) })
	if err != nil {
		return nil, err
	}
	return asking{kv, js.Conn()}, nil
}

type asking struct {
	jetstream.KeyValue
	nc *nats.Conn
}

func (b asking) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	return transient.Ask(ctx, b.nc, func(ctx context.Context) (jetstream.KeyValueEntry, error) { return b.KeyValue.Get(ctx, key) })
}

func openOrMake(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, cfg.Bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	kv, err = js.CreateKeyValue(ctx, cfg)
	if errors.Is(err, jetstream.ErrBucketExists) {
		return js.KeyValue(ctx, cfg.Bucket)
	}
	return kv, err
}
