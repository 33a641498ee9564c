package route

import (
	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/supervise"
)

// hint tells the other instances.
func (rt *Route) hint(h supervise.Hint) {
	if !rt.Spec.HandlesEvents(rt.Home.Config.Service) && !rt.Spec.Leased() {
		rt.Home.Hints().Tell(rt.Spec.Name, h)
	}
}

// hints is how this instance and the others tell each other of outages.
func (r *Home) Hints() peers.Hints {
	return peers.Hints{Conn: r.Conn, Service: r.Config.Service, Instance: r.Config.Instance}
}
