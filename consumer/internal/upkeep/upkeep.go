// Package upkeep watches relay's own streams while it runs: whether they are there and have the settings that they need, how full they are, and
// whether somebody else took something out of them. What it finds it says in the log, in the status, in readiness and in metrics.
// It also frees schedules that are stuck, and sweeps what nobody needs any more.
package upkeep

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
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

	// Stores are relay's own streams and buckets. The start opens them before SetRight or anything that watches is called.
	Stores *stores.Stores
	// Streams are what relay's own streams have to be now.
	Streams func() []jetstream.StreamConfig
	Parked  Room // for parked messages
	// SweepRecords removes the records of settled messages that it is for this instance to remove.
	SweepRecords func(ctx context.Context)
	// Routes are the names of the routes whose dead letters are counted.
	Routes func() []string

	// Stored is how many messages this instance has put into the dead letters and the retry stream. When it changes, they are looked at soon.
	Stored func() uint64

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

// Upkeep watches relay's own streams. Make it with [New].
type Upkeep struct {
	cfg Config

	use      use
	fills    fills
	losses   losses
	jobs     jobs
	stuck    stuck
	compared sync.Map // *jetstream.StreamInfo when they were last compared, by name
}

// New returns one that knows nothing yet, and that may be asked all the same.
func New(cfg Config) *Upkeep { return &Upkeep{cfg: cfg} }

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
