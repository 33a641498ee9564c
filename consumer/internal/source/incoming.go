package source

import (
	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/intake"
)

// Incoming is a message that a source received, and of which it finds out whose it is and what is known of it.
type Incoming struct {
	intake.Arrival
	Route  *Route // nil: no route of this instance wants it
	Source *Source

	work     Work
	delivery ack.Delivery // what Delivery points to, without an allocation of its own
}

// Received is the message itself, as the source has it.
func (m *Incoming) Received() *Incoming { return m }

// on has the message be one of that route.
func (m *Incoming) on(rt *Route) {
	if m.Route = rt; rt != nil {
		m.Path = rt.Path
	}
}

// letGo releases a delivery that is of no use.
func (m *Incoming) letGo() {
	var r *intake.Route
	if m.Route != nil {
		r = m.Route.Intake
	}
	m.LetGo(r)
}

// ID is the Relay-Id of the message.
func (m *Incoming) ID() string {
	if m.Origin != nil {
		return m.Origin.ID()
	}
	return m.Source.id(m.Delivery)
}
