package route

import (
	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/parking"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/supervise"
)

// What a route holds is bounded by its configuration; see package memory. But for what is in its handlers, this is
//
//	stash.bytes + 16 MiB for the window + 16 MiB for what is being settled
//
// and 16 MiB for what waits for its caller, where callers may be asked. The pull loops of the route ask for no more than still fits.
// Handlers have concurrency messages more.

// settlingBytes and settlingMost are for messages that are being settled: those that wait to be recorded, parked or
// dead-lettered, and those whose settlement the server has not confirmed.
const (
	settlingBytes = parking.MostBytes
	settlingMost  = parking.Most + source.MaxUnconfirmed
)

// mostHeld is the bound of what the route holds, whose group has these options.
func (r Spec) mostHeld(o supervise.Options) supervise.Room {
	most := supervise.Room{
		Messages: o.StashMessages + o.Concurrency + max(o.Concurrency, supervise.MaxWindow) + settlingMost,
		Bytes:    o.StashBytes + supervise.MaxWindowBytes + settlingBytes,
	}
	if r.asks() {
		most.Messages, most.Bytes = most.Messages+maxAsking, most.Bytes+caller.MaxWaitingBytes
	}
	return most
}

// within is as much of what the route could use as it may hold.
func (rt *Route) within(free supervise.Room) supervise.Room {
	if rt.Spec.asks() {
		free.Messages = min(free.Messages, rt.Callers.Gates.Room())
	}
	return rt.Memory.Within(free)
}
