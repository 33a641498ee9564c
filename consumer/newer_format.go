package consumer

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
	// newerSaid is what the trouble is called. It is over when none came for twice that delay.
	newerSaid = "messages written by a newer version of relay"
)

// newer gives a message back that this version cannot read all of.
func (m *message) newer(why error) {
	now := time.Now()
	m.route.newerSeen.Store(now.UnixNano())
	m.route.troubles.Note(newerSaid, fmt.Errorf("%w: the messages wait until this instance is updated", why), now)
	_ = m.delivery.Nak(now.Add(newerDelay)) // fenced: somebody else has it
}

// forgetNewer ends the trouble when none came lately.
func (rt *route) forgetNewer(now time.Time) {
	if at := rt.newerSeen.Load(); at != 0 && now.Sub(time.Unix(0, at)) > 2*newerDelay && rt.newerSeen.CompareAndSwap(at, 0) {
		rt.troubles.Mended(newerSaid, now)
	}
}
