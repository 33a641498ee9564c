package settle

import (
	"fmt"
	"time"
)

// While instances are updated one after the other, an older one may meet what a newer one wrote: a record of attempts, a parked
// message. What its fields mean is not known here. So the message goes back, unchanged, until a newer instance gets it, or this one is
// updated.
const (
	// newerDelay is how long such a message stays away.
	newerDelay = time.Minute
	// newerSaid is what the trouble is called.
	newerSaid = "messages written by a newer version of relay"
)

// Newer gives a message back that this version cannot read all of.
func (m *Unsettled) Newer(why error) {
	now := time.Now()
	m.Path.Troubles.NoteFor(2*newerDelay, newerSaid, fmt.Errorf("%w: the messages wait until this instance is updated", why), now)
	_ = m.Delivery.Nak(now.Add(newerDelay)) // fenced: somebody else has it
}
