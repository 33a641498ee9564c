package consumer

import (
	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/supervise"
)

// peerHints is how this instance and the others tell each other of outages.
func peerHints(r *Relay) peers.Hints {
	return peers.Hints{Conn: r.nc, Service: r.cfg.Service, Instance: r.cfg.Instance}
}

// hint tells the other instances.
func (rt *route) hint(h supervise.Hint) {
	if !rt.cfg.handlesEvents(rt.relay.cfg.Service) && !rt.cfg.Leased() {
		peerHints(rt.relay).Tell(rt.cfg.Name, h)
	}
}

// hear has a route hear what another instance tells.
func (l *routeList) hear(route, instance string, h supervise.Hint) {
	if rt := l.named(route); rt != nil && !rt.cfg.Leased() {
		rt.group.Hear(instance, h)
	}
}
