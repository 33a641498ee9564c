package consumer

import (
	"time"

	"github.com/relaymq/relay/internal/control"
)

// MaxSlow is the longest time for which [Msg.Slow] counts: a stranger's typing error must not stop a route for a year.
const MaxSlow = time.Hour

// Slow says that whom the handler works with permits so many more attempts within a time, of which at most [MaxSlow] counts: no more
// than these start of the message's route on this instance. Zero or less means none. Why is shown by status. While an earlier word
// holds, it can only be made stricter; an operator's resume of the route ends it. It does nothing for a route without [Route.Rate],
// and in a [Fallback].
func (m *Msg) Slow(starts int, within time.Duration, why string) {
	if m.paced == nil || within <= 0 {
		return
	}
	if own := m.paced.ownLimit(); own != nil {
		own.Slow(starts, time.Now().Add(min(within, MaxSlow)), control.Cut(why, control.MaxText))
	}
}
