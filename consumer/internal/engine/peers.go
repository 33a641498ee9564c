package engine

import (
	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/supervise"
)

// peerHints is how this instance and the others tell each other of outages.
func peerHints(r *Engine) peers.Hints {
	return peers.Hints{Conn: r.Conn, Service: r.Config.Service, Instance: r.Config.Instance}
}

// hint tells the other instances.
func (rt *Route) hint(h supervise.Hint) {
	if !rt.Spec.handlesEvents(rt.Engine.Config.Service) && !rt.Spec.Leased() {
		peerHints(rt.Engine).Tell(rt.Spec.Name, h)
	}
}

// hear has a route hear what another instance tells.
func (l *routeList) hear(route, instance string, h supervise.Hint) {
	if rt := l.Named(route); rt != nil && !rt.Spec.Leased() {
		rt.Group.Hear(instance, h)
	}
}
