// Package stores knows relay's own streams and buckets: their names, the settings that they need, and how a start opens them. Package upkeep
// watches them while relay runs.
package stores

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/retry"
)

// Config is what the configuration says of relay's own streams and buckets.
type Config struct {
	Service  string // begins their names
	Instance string // that uses them
	Replicas int
	Letters  Letters
	Events   *Bounds // nil: they are not stored
	Archive  *Bounds // nil: there is none
}

// Bounds are those of a stream from which the oldest messages go.
type Bounds struct {
	Age      time.Duration
	Bytes    int64
	Messages int64
}

// Letters are the bounds of the dead letters. Zero means none.
type Letters struct {
	Bounds
	OnFull string // what happens to dead letters then, see [dlq.Config]
}

// RetryStream is the name of the stream in which messages wait outside their durables.
func (c Config) RetryStream() string { return retry.StreamName(c.Service) }

// AttemptsBucket is the name of the bucket with the attempts of messages that failed.
func (c Config) AttemptsBucket() string { return retry.BucketName(c.Service) }

// InstancesBucket is the name of the bucket in which processes say that they live.
func (c Config) InstancesBucket() string { return suspects.Bucket(c.Service) }

// DeadPrefix begins the subjects of the dead letters of a route; own is what the route says of that.
func (c Config) DeadPrefix(own string) string { return cmp.Or(own, c.Service+".dlq") }

// DeadLetters is what the dead letters need when routes have these prefixes; an empty one is that of all.
func (c Config) DeadLetters(prefixes []string, log *slog.Logger) dlq.Config {
	var own []string
	for _, p := range prefixes {
		if p = c.DeadPrefix(p); p != c.DeadPrefix("") && !slices.Contains(own, p) {
			own = append(own, p)
		}
	}
	return dlq.Config{
		Service: c.Service, Replicas: c.Replicas, Prefixes: own, Instance: c.Instance, Logger: log,
		MaxAge: c.Letters.Age, MaxBytes: c.Letters.Bytes, MaxMsgs: c.Letters.Messages, OnFull: c.Letters.OnFull,
	}
}

// Streams are the streams of all of them, with the settings that they need. Buckets are streams too. That of the fleet is not among them: see Fleet.
func (c Config) Streams(prefixes []string) []jetstream.StreamConfig {
	list := append([]jetstream.StreamConfig{retry.StreamConfig(c.Service, c.RetryStream(), c.Replicas)}, c.DeadLetters(prefixes, nil).Streams()...)
	if c.Events != nil {
		list = append(list, c.eventsStream())
	}
	if c.Archive != nil {
		list = append(list, c.archiveStream())
	}
	return append(list,
		ownstream.Bucket(c.AttemptsBucket(), c.Replicas, 0), ownstream.Bucket(audit.Bucket(c.Service), c.Replicas, 0),
		ownstream.Bucket(orders.Name(c.Service), c.Replicas, 0),
		ownstream.Bucket(c.InstancesBucket(), c.Replicas, suspects.Lapse), dlq.JobsStream(c.Service, c.Replicas))
}

// Fleet is the stream that there is beside them where routes need a fleet.
func (c Config) Fleet() jetstream.StreamConfig { return fleet.Stream(c.Service, c.Replicas) }

func (c Config) eventsStream() jetstream.StreamConfig {
	return events.Stream(c.Service, c.Replicas, c.Events.Age, c.Events.Bytes, c.Events.Messages)
}

func (c Config) archiveStream() jetstream.StreamConfig {
	return archive.Stream(c.Service, c.Replicas, c.Archive.Age, c.Archive.Bytes, c.Archive.Messages)
}
