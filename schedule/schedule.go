// Package schedule publishes messages later, by a running relay: [AttachLater], and then [Later.Delay].
//
// A delayed message waits in streams of relay's own. When it is due an instance of relay publishes it on its subject, waits for the confirmation, and
// only then removes it. So it is published for certain, and perhaps twice within a crash: its Nats-Msg-Id is the id, by which the stream that takes it
// stores it once within its duplicate window. docs/schedules.md says more, also of what is published again and again.
package schedule

import (
	"cmp"
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/schedule"
)

// Later has messages published later. Safe for concurrent use.
type Later struct{ later *schedule.Later }

// Delayed is a message that waits.
type Delayed struct {
	ID      string
	Subject string
	Due     time.Time
	Size    int // of its body, in bytes
	Stored  time.Time
	// Overdue says that it is due, and that no stream has taken it yet: it is tried again, a minute later at most.
	Overdue bool
}

// AttachLater is for whoever publishes by the relay of a service (empty: relay). It makes nothing and asks for nothing: a running relay makes the
// streams.
func AttachLater(js jetstream.JetStream, service string) *Later {
	return &Later{schedule.AttachLater(js, cmp.Or(service, "relay"))}
}

// Delay stores m to be published on its subject at due, and returns when the server has it. An id is 1 to 64 letters, digits, - and _. A message of the same
// id and subject that still waits is replaced. One that is due already is published at once. The error is [ErrNoIntake] or [ErrFull] when nothing
// was stored for that reason.
func (l *Later) Delay(ctx context.Context, id string, m *nats.Msg, due time.Time) (*jetstream.PubAck, error) {
	return l.later.Delay(ctx, id, m, due)
}

// List returns what waits, at most that many; more tells whether there are others.
func (l *Later) List(ctx context.Context, most int) (list []Delayed, more bool, err error) {
	waits, more, err := l.later.List(ctx, most)
	return outward(waits), more, err
}

// Find returns what waits under an id, at most a hundred.
func (l *Later) Find(ctx context.Context, id string) ([]Delayed, error) {
	waits, err := l.later.Find(ctx, id)
	return outward(waits), err
}

// Remove takes back what waits under an id, and returns how many messages these were. Zero: there were none, or all of them are published.
func (l *Later) Remove(ctx context.Context, id string) (int, error) { return l.later.Remove(ctx, id) }

func outward(waits []schedule.Delayed) (list []Delayed) {
	for _, d := range waits {
		list = append(list, Delayed(d))
	}
	return list
}

// Errors of [Later.Delay].
var (
	// ErrNoIntake says that no relay made the stream that takes delayed messages.
	ErrNoIntake = schedule.ErrNoIntake
	// ErrFull says that as many messages wait as may. Nothing was stored, and nothing that waits was lost.
	ErrFull = schedule.ErrFull
)
