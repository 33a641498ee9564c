package watchdog

import (
	"reflect"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/internal/looks"
)

// restFor is how long a durable on which nothing happens is known by its stream. One that is replicated is asked itself each time: its leader
// answers, and parks pulls, when it has lost its followers.
const restFor = 30 * time.Second

// rest is a durable that had delivered all its messages, all of which were settled. While its stream holds what it held, that is as it was. Its
// deletion ends the pull that is parked.
type rest struct {
	since   time.Time // zero: it does not rest
	content looks.Content
	config  jetstream.StreamConfig
	look    backlog.Look
}

// holds tells whether the durable is known by its stream.
func (r *rest) holds(stream looks.Look, now time.Time) bool {
	info := stream.CachedInfo()
	return now.Sub(r.since) < restFor && r.content == looks.ContentOf(info) && reflect.DeepEqual(r.config, info.Config)
}

// newRest begins a rest, if nothing is to be done on the durable.
func newRest(stream looks.Look, info *jetstream.ConsumerInfo, e health.Edits) rest {
	idle := info.NumPending == 0 && info.NumAckPending == 0 && !info.Paused && (info.Cluster == nil || len(info.Cluster.Replicas) == 0)
	if !idle || len(e.Stop) > 0 || len(e.Slow) > 0 {
		return rest{}
	}
	// What was stored between the two answers is not in the first.
	return rest{time.Now(), looks.ContentOf(stream.CachedInfo()), stream.CachedInfo().Config, backlog.Look{Floor: info.AckFloor.Stream}}
}
