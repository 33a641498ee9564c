package metrics

import (
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/supervise"
)

// Snapshot is how an instance is at one moment. A nil pointer in it is not known, or not there: such a metric is left out, for 0 would say something.
type Snapshot struct {
	Connected, Ready bool
	Orphans          map[string]int // messages by orphans.Kind
	Durables         []Durable
	Limits           []Limit
	Routes           []Route
	Ended            map[string][]*RouteCount // see [Collector.Ended]
	DeadLetters      *dlq.Usage
	Archive          *Archive
}

// Durable is one that is open.
type Durable struct {
	Stream, Name string
	Count        *DurableCount
	Unconfirmed  int
	AckPending   *int
}

// Limit is a limit on this instance.
type Limit struct {
	Name    string
	Places  int
	Rate    float64
	Running map[string]int // by route
}

// Archive is what was written to the archive, and what was not.
type Archive struct{ Stored, Dropped uint64 }

// Route is a route, or a part of a route. Parts of one route have the same name: they are added up.
type Route struct {
	Name     string
	Count    *RouteCount
	Group    supervise.Status
	Fallback supervise.FallbackStatus
	Holds    supervise.Room
	HeldMost int // bytes
	CatchUp  int
	Limits   []string // that bound it
	State    string
	Here     *bool // this instance has it; nil: no one instance does

	Backlog *control.Backlog
	Oldest  *time.Time // the zero time: none waits
	// Once for all parts:
	Behind *int
	Dead   *int
}
