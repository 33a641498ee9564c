// Package schedule publishes messages later, by a running relay: [AttachLater], and then [Later.Delay].
//
// A delayed message waits in streams of relay's own. When it is due an instance of relay publishes it on its subject, waits for the confirmation, and
// only then removes it. So it is published for certain, and perhaps twice within a crash: its Nats-Msg-Id is the id, by which the stream that takes it
// stores it once within its duplicate window. docs/schedules.md says more, also of what is published again and again.
package schedule

import (
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/schedule"
)

type (
	// Later has messages published later. Safe for concurrent use.
	Later = schedule.Later
	// Delayed is a message that waits.
	Delayed = schedule.Delayed
)

// AttachLater is for whoever publishes by the relay of a service, which is relay unless its configuration has another one. It makes nothing and asks
// for nothing: a running relay makes the streams.
func AttachLater(js jetstream.JetStream, service string) *Later {
	return schedule.AttachLater(js, service)
}

// Errors of [Later.Delay].
var (
	// ErrNoIntake says that no relay made the stream that takes delayed messages.
	ErrNoIntake = schedule.ErrNoIntake
	// ErrFull says that as many messages wait as may. Nothing was stored, and nothing that waits was lost.
	ErrFull = schedule.ErrFull
)
