package engine

import (
	"github.com/relaymq/relay/internal/supervise"
)

// hear has a route hear what another instance tells.
func (l *routeList) hear(route, instance string, h supervise.Hint) {
	if rt := l.Named(route); rt != nil && !rt.Spec.Leased() {
		rt.Group.Hear(instance, h)
	}
}
