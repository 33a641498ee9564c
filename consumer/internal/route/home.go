package route

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/replayed"
	"github.com/relaymq/relay/consumer/internal/reports"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tenure"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/trouble"
)

// Config is what routes go by that an instance has for all of them, with its defaults.
type Config struct {
	stores.Config // of relay's own streams, with the names of the service and of this instance

	Parked  upkeep.Room
	Stalled time.Duration
	Results bool // the archive keeps what handlers return
	// NewMsg makes what a handler gets. Only at the first attempt of a message its Attempt is used.
	NewMsg func() Msg
	// CalledBackFrom is how many messages of a durable must be outstanding for those that were put aside to be called back.
	CalledBackFrom int
}

// Home is the instance that routes run on: what they share. Whoever makes it fills it in before it makes the first route, but for what says otherwise.
type Home struct {
	Config   Config
	Log      *slog.Logger
	Conn     *nats.Conn
	JS       jetstream.JetStream
	Line     *caller.Line // to the callers of messages
	Stores   *stores.Stores
	Bounds   *limits.Set // all limits
	Reports  reports.Reports
	Troubles *trouble.List // what is away that routes share
	Solo     *suspects.Solo
	Fleet    *fleet.Membership
	Phases   *Phases
	Values   values

	OpenSources func() []*source.Source
	IsDraining  func() bool              // the instance ends
	Behind      func(route string) int64 // how far the stream of the partitions of a route is behind; below zero: not known, or it has none

	// ConfigStatus is the configuration that the instance runs, as the program said; nil: it has not said.
	ConfigStatus atomic.Pointer[control.ConfigStatus]

	// Set before a message comes.
	Upkeep   *upkeep.Upkeep
	Replayed *replayed.Verdicts
	Archive  *archive.Writer // nil: what became of messages is not kept
	Escalate func(error)     // ends relay
}

// Place is where the messages of a route come from, and whose turn it is to have them.
type Place struct {
	Owner  any // who set it
	Main   *source.Source
	Tenure *tenure.Tenure // of use only where one instance at a time has the route
}
