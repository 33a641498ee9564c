package source

import (
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/identity"
)

// For tests and benchmarks that play the server.

// Take does what the pull loop does with a message that has arrived, and those that arrived after it. The loop must not run meanwhile.
func Take(s *Source, m *nats.Msg) { s.loop.take(m) }

// Renumbered says that the durable begins to number its deliveries anew, and is the same all the same.
func Renumbered(s *Source) { s.loop.suspect = identity.Watch{} }

// Behind is how many messages of ordered keys wait for what is asked of them first.
func Behind(s *Source) int64 { return s.ordered.behind.Load() }
