package source

import (
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/identity"
)

// For tests and benchmarks that play the server.

// Arrived is where the pull loop gets what arrives.
func (s *Source) Arrived() chan *nats.Msg { return s.pulls.Arrived() }

// Take does what the pull loop does with a message that has arrived, and those that arrived after it. The loop must not run meanwhile.
func (s *Source) Take(m *nats.Msg) { s.loop.take(m) }

// Renumbered says that the durable begins to number its deliveries anew, and is the same all the same.
func (s *Source) Renumbered() { s.loop.suspect = identity.Watch{} }

// Room is for how many messages the pulls that are out ask.
func (s *Source) Room() int { return s.pulls.Room() }
