package source

import (
	"log/slog"
	"time"

	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/memory"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

// Route is a route that gets messages from a source.
type Route struct {
	Owner any // what has it, for whoever knows what that is

	Name     string // of its configuration; a partition has one of its own
	Called   string // to others: a partition is called as its route is
	Log      *slog.Logger
	Subjects []string
	Start    Start
	AckWait  time.Duration
	// FormerAckWait is what it had before a change, which may be what its durable still has; zero: there was none.
	FormerAckWait time.Duration
	Ordered       bool
	Leased        bool              // one instance at a time handles its messages
	Part          *generations.Part // nil: it is no partition
	// MaxAge is retry.max_age as it is now.
	MaxAge func() time.Duration

	Group    *supervise.Group
	Path     *settle.Path
	Memory   *memory.Account
	Intake   *intake.Route
	Looks    *pool.Pool
	Troubles *trouble.List
	Tally    *tally.RouteCount
	// Within is as much of what the group could use as the route may hold.
	Within func(free supervise.Room) supervise.Room
}

// Start is where a route begins on a durable that does not exist yet.
type Start struct {
	Policy string // all, new, since or seq; empty: nobody has said
	Since  time.Time
	Seq    uint64
	Text   string // as it is configured
}

func (s Start) forDurable() durables.Start { return durables.Start{Policy: s.Policy, Text: s.Text} }

// Work is a message of a route: the Incoming, with what its owner needs to handle it.
type Work interface {
	settle.Owner
	Received() *Incoming
	// Enter is called once, when all is known of the message, and returns it for the group of its route; nil: it was settled instead.
	Enter(rec retry.Record) *supervise.Message
	// Clear makes it as new, for another message.
	Clear()
}
