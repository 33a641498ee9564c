package tally

import (
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/retry"
)

// RouteCount counts the messages of one route. What is done, dead or ended by the fallback is counted by others; see [Route].
type RouteCount struct {
	received, replayed, dropped, expired, forgotten, unsure atomic.Uint64

	// Guarded by Tally.writing:
	written       audit.Counts
	unsureWritten uint64
}

// End is how a message ended that is neither done nor dead.
type End int

// The ends of [RouteCount.Ended].
const (
	Dropped   End = iota // nobody wants it, as its handler said
	Expired              // its deadline was over
	Forgotten            // its caller did not want it any more
)

// Ended counts a message that ended.
func (c *RouteCount) Ended(how End) {
	switch how {
	case Dropped:
		c.dropped.Add(1)
	case Expired:
		c.expired.Add(1)
	case Forgotten:
		c.forgotten.Add(1)
	}
}

// FromNowhere counts the first delivery of a message on the retry stream that relay did not write: no ledger knows it. What has the subject of a
// replay was counted when it arrived.
func (c *RouteCount) FromNowhere(subject string) {
	if !retry.IsReplay(subject) {
		c.replayed.Add(1)
	}
}

// NotParked counts an error of parking that does not prove that the message is not stored.
func (c *RouteCount) NotParked(err error) {
	var refused *jetstream.APIError
	if err != nil && !errors.Is(err, retry.ErrParkFull) && !errors.Is(err, nats.ErrMaxPayload) && !errors.As(err, &refused) {
		c.unsure.Add(1)
	}
}

func (c *RouteCount) came() audit.Counts {
	return audit.Counts{Received: c.received.Load(), Replayed: c.replayed.Load()}
}

func (c *RouteCount) ended() audit.Counts {
	return audit.Counts{Dropped: c.dropped.Load(), Expired: c.expired.Load(), Forgotten: c.forgotten.Load()}
}

// DurableCount counts the deliveries of one durable. It goes on when the durable is opened again.
type DurableCount struct {
	arrived, firsts, unrouted, elsewhere atomic.Uint64

	// Guarded by Tally.writing:
	written                           audit.Deliveries
	unroutedWritten, elsewhereWritten uint64
}

// Delivery is one that arrived.
type Delivery struct {
	First     bool        // of its message
	Due       bool        // on the retry stream
	Passed    bool        // the durable is handed it in another way, which counts it
	Partition bool        // it goes into its partition, which counts it if it is due
	Route     *RouteCount // of the route that wants it; nil: none of the instance does
	Subject   string
}

// Delivered counts a delivery.
func (c *DurableCount) Delivered(d Delivery) {
	c.arrived.Add(1)
	if !d.First {
		return
	}
	c.firsts.Add(1)
	switch {
	case d.Due && d.Partition:
	case d.Due:
		switch {
		case retry.IsReplay(d.Subject):
			d.Route.replayed.Add(1)
		case retry.IsBrought(d.Subject):
			d.Route.received.Add(1) // its durable had passed it
		}
	case d.Passed:
	case d.Route != nil:
		d.Route.received.Add(1)
	default:
		c.unrouted.Add(1)
	}
}

// Elsewhere counts a message that no route wants and that another durable has.
func (c *DurableCount) Elsewhere() { c.elsewhere.Add(1) }
