// Package upkeep watches relay's own streams while it runs: whether they are there and have the settings that they need, how full they are, and
// whether somebody else took something out of them. What it finds it says in the log, in the status, in readiness and in metrics.
package upkeep

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/trouble"
)

// Config is what an [Upkeep] works with. All of it is needed.
type Config struct {
	Conn     *nats.Conn
	JS       jetstream.JetStream
	Log      *slog.Logger
	Looks    *looks.Streams
	Troubles *trouble.List
	Probing  sync.Locker // held while it is tried what the server permits

	Service  string
	Replicas int
	// Streams are what relay's own streams have to be now.
	Streams        func() []jetstream.StreamConfig
	RetryStream    string
	AttemptsBucket string
	DeadStreams    [2]string
	DeadAge        time.Duration // of dead letters
	OnFull         string        // what happens to dead letters then
	Parked         Room          // for parked messages
	// Buckets are those that are only to be there.
	Buckets func() []string
	// Routes are the names of the routes whose dead letters are counted.
	Routes func() []string

	// AmongMany is a period of looks that every instance makes: it may be longer with many instances.
	AmongMany func(time.Duration) time.Duration
	// Stirred changes when something was stored, or could not be: then it is looked at soon.
	Stirred func() Stir

	// ReportTrouble and ReportFilling publish events.
	ReportTrouble func(what string, err error)
	ReportFilling func(dlq.Usage)
}

// Room is how much there may be.
type Room struct {
	Bytes    int64
	Messages int
	Age      time.Duration
}

// Stir counts what was stored, and says when something last could not be, in Unix nanoseconds.
type Stir struct {
	Stored uint64
	Failed int64
}

// Upkeep watches relay's own streams. Make it with [New].
type Upkeep struct {
	cfg Config

	retries *retry.Stream
	records *retry.Bucket
	dead    *dlq.Store

	use      use
	fills    fills
	losses   losses
	jobs     jobs
	compared sync.Map // *jetstream.StreamInfo when they were last compared, by name
}

// New returns one that knows nothing yet, and that may be asked all the same.
func New(cfg Config) *Upkeep { return &Upkeep{cfg: cfg} }

// Open gives it the stores that the start has opened. SetRight, WatchSettings, WatchUse and Compare may be called after that.
func (u *Upkeep) Open(retries *retry.Stream, records *retry.Bucket, dead *dlq.Store) {
	u.retries, u.records, u.dead = retries, records, dead
}

// Troubles are lines for the status: which streams are nearly full.
func (u *Upkeep) Troubles() []string { return u.fills.troubles() }

// Describe sends what Collect may send of single streams; see prometheus.Collector.
func Describe(ch chan<- *prometheus.Desc) {
	ch <- fillRatio
	ch <- lostDesc
	ch <- replaysDesc
}

// Collect sends the metrics.
func (u *Upkeep) Collect(ch chan<- prometheus.Metric) {
	u.use.collect(ch)
	u.fills.collect(ch)
	u.losses.collect(ch)
	u.jobs.collect(ch)
}

// settleTimeout bounds one request.
const settleTimeout = 5 * time.Second
