package route

import (
	"log/slog"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/upkeep"
)

// engineConfig is what the routes of an Engine share, with its defaults and checked.
type Config struct {
	stores.Config // of relay's own streams, with the names of the service and of this instance

	Domain  string
	Limits  map[string]limits.Limit
	Parked  upkeep.Room
	Drain   time.Duration
	Stalled time.Duration
	Lease   time.Duration // of what one instance at a time has
	Results bool          // the archive keeps what handlers return
	Adopt   bool
	// Troubles is what else does not work in this process; nil: nothing does.
	Troubles func() []string
	Logger   *slog.Logger
	// NewMsg makes what a handler gets.
	NewMsg func() Msg
	// CalledBackFrom is how many messages of a durable must be outstanding for those that were put aside to be called back.
	CalledBackFrom int
}
