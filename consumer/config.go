package consumer

import (
	"cmp"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/consumer/internal/parking"
	"github.com/relaymq/relay/dlq"
)

// Config is what the routes of a [Relay] share. Its zero value works.
type Config struct {
	// Service begins the names of relay's own streams, buckets and subjects. Empty means relay.
	Service string
	// Domain of JetStream, or empty.
	Domain string
	// Replicas of relay's own streams and buckets. Zero means 1.
	Replicas int
	// DLQ says how long dead letters are kept, how many, and what happens when there is no room.
	DLQ dlq.Config
	// Events says whether events are stored.
	Events Events
	// Archive says whether the outcomes of messages are recorded.
	Archive Archive
	// Parked bounds what waits in the retry stream.
	Parked Parked
	// Limits are bounds that routes share, by name.
	Limits map[string]Limit
	// Drain is how long handlers may finish once Run is to end. Zero means 30s.
	Drain time.Duration
	// Stalled is for how long a route may start nothing, although messages wait and no operator paused it, before it is not
	// ready. Zero means 1m.
	Stalled time.Duration
	// Troubles adds to the status what else does not work in the process around the Relay. It may be nil.
	Troubles func() []string
	// Adopt changes durables that exist with other settings.
	Adopt bool
	// Fleet says how instances learn of each other, where routes need that.
	Fleet Fleet
	// Instance names this process in dead letters and logs. Empty means the host name and a random part.
	Instance string
	// Use are middleware around the handlers of all routes. The first is the outermost.
	Use []Middleware
	// Logger may be nil.
	Logger *slog.Logger

	calledBackFrom int // of a test that has no time for so many; zero means parking.CalledBackFrom
}

func (c Config) withDefaults() Config {
	c.Service = cmp.Or(c.Service, "relay")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Drain = cmp.Or(c.Drain, 30*time.Second)
	c.Stalled = cmp.Or(c.Stalled, time.Minute)
	c.Events = c.Events.WithDefaults()
	c.Archive = c.Archive.WithDefaults()
	c.Parked = c.Parked.WithDefaults()
	c.calledBackFrom = cmp.Or(c.calledBackFrom, parking.CalledBackFrom)
	if c.Instance == "" {
		host, _ := os.Hostname()
		c.Instance = cmp.Or(host, "relay") + "-" + nuid.Next()[16:]
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// SetDrain changes [Config.Drain] of a Relay that may be running; zero means 30s.
func (r *Relay) SetDrain(d time.Duration) { r.engine.SetDrain(Config{Drain: d}.withDefaults().Drain) }
