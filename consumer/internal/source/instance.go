package source

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/permission"
)

// Instance is what all sources of an instance share.
type Instance struct {
	Conn   *nats.Conn
	JS     jetstream.JetStream
	API    string // prefix of the JetStream API's subjects
	Domain string // empty: the server's own
	Log    *slog.Logger

	Service, Name string
	Adopt         bool          // durables with other settings are changed
	Lease         time.Duration // of a claim
	Stalled       time.Duration // after which what stands still is told

	Link     *link.Link
	Prober   *permission.Prober
	Streams  *looks.Streams
	Listings *durables.Listings
	Stores   *stores.Stores
	Late     chan struct{} // holds a value for each source that is being opened late

	// New makes a message for a route.
	New func() Work
	// Plans tells whether the durables are only looked at, for a reload that is planned.
	Plans func() bool
	// DrainTime is how long a drain may take.
	DrainTime func() time.Duration
	// HasRoute tells whether a route of this instance is called so in its configuration.
	HasRoute func(name string) bool
	// Attempt bounds a try, and ends it when the server says that something is not permitted.
	Attempt func(ctx context.Context, try func(ctx context.Context) error) error
	// IsBehind tells whether there are newer generations of the partition's route.
	IsBehind func(ctx context.Context, p *generations.Part) (bool, error)
	// GenerationsChanged has the generations of partitions looked at soon.
	GenerationsChanged func()

	// Open are the sources that are open. Include and Replace change the list, unless the unit of the source ends.
	Open    func() []*Source
	Include func(s *Source) bool
	Replace func(old, next *Source) bool
}
