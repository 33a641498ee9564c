package route

import (
	"errors"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/supervise"
)

// counters are those of a route.
type Counters struct {
	metrics.RouteCount
	Tally tally.RouteCount
}

// ended counts what becomes of a message for good, but for those that are done or dead, which others count.
func (c *Counters) ended(o supervise.Outcome) {
	switch {
	case o.Action != supervise.DropMessage:
	case o.Err == caller.ErrExpired:
		c.Tally.Ended(tally.Expired)
	case errors.Is(o.Err, caller.ErrForgotten):
		c.Tally.Ended(tally.Forgotten)
	default:
		c.Tally.Ended(tally.Dropped)
	}
}

// ends are the messages that ended, but for those of ended.
func (c *Counters) Ends() audit.Counts {
	return audit.Counts{Done: c.Settled[supervise.AckMessage].Load(), Fallback: c.Fallback.Load(), Dead: c.Stored()}
}
