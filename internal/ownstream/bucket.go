package ownstream

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
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
