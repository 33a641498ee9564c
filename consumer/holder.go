package consumer

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/control"
)

// holder says who has the route; nil: all instances do.
func (rt *route) holder() *control.HolderStatus {
	if !rt.cfg.Leased() {
		return nil
	}
	h := new(control.HolderStatus)
	f, u := rt.relay.membership.Now(), rt.unit.Load()
	if f == nil || u == nil {
		return h
	}
	if claim, ok := f.Holder(u.resource()); ok {
		h.Instance, h.Fence, h.Here = claim.Instance, claim.Fence, claim.Mine
	}
	for m, s := range peers.Here(f) {
		if m.Instance != h.Instance && s.Has(rt.cfg.Name) {
			h.Standbys = append(h.Standbys, m.Instance)
		}
	}
	return h
}

// standing says that nothing starts here because another instance has the route, or because nobody can.
func (rt *route) standing() (state, why string, since time.Time, yes bool) {
	u := rt.unit.Load()
	if !rt.cfg.Leased() || u == nil {
		return "", "", time.Time{}, false
	}
	if l := u.tenure.lease.Load(); l != nil && l.Valid() {
		return "", "", time.Time{}, false
	}
	if since, err := rt.relay.membership.Trouble(); err != nil {
		return RouteStopped, noSession(err).Error(), since, true
	}
	if h := rt.holder(); h.Instance != "" {
		return RouteStandby, fmt.Sprintf("instance %s has the route; this instance takes over when that one ends or stops answering", h.Instance), time.Time{}, true
	}
	return RouteStandby, "no instance has the route yet", time.Time{}, true
}

// noSession is why a route that only one instance may have cannot be had.
func noSession(err error) error {
	return fmt.Errorf("this instance could not renew its lease, so it must not handle this route: %w; retrying", err)
}
