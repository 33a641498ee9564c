package route

import (
	"log/slog"
	"sync/atomic"

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

// home is the instance that routes run on: what they share. Whoever makes it fills it in before it makes the first route, but for what says otherwise.
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
	Phases   *phases
	Values   values
	Told     atomic.Pointer[control.ConfigStatus] // the configuration that it runs, as the program said

	// Set before a message comes.
	Upkeep   *upkeep.Upkeep
	Replayed *replayed.Verdicts
	Archive  *archive.Writer // nil: what became of messages is not kept
	Escalate func(error)     // ends relay

	Open   func() []*source.Source  // the sources that are open
	Drains func() bool              // the instance ends
	Behind func(route string) int64 // how far the stream of the partitions of a route is behind; below zero: not known, or it has none
}

// place is where the messages of a route come from, and whose turn it is to have them.
type Place struct {
	Owner  any // who set it
	Main   *source.Source
	Tenure *tenure.Tenure // of use only where one instance at a time has the route
}
