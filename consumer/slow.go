package consumer

import (
	"time"

	"github.com/relaymq/relay/internal/control"
)

// maxSlow is the longest time for which Msg.Slow counts, so that a wrong value from a remote service cannot stop a route for a year.
const maxSlow = time.Hour

// Slow says that the service behind the handler permits only so many more attempts (starts) within a time, of which at most an hour counts.
// The route of the message starts no more than these on this instance. Zero or less means none. Status shows why. While an earlier
// call holds, a later one can only be stricter; an operator's resume of the route ends it. It does nothing for a route without
// [Route.Rate], and in a [Fallback].
func (m *Msg) Slow(starts int, within time.Duration, why string) {
	if m.own == nil || within <= 0 {
		return
	}
	if own := m.own(); own != nil {
		own.Slow(starts, time.Now().Add(min(within, maxSlow)), control.Cut(why, control.MaxText))
	}
}
