package consumer

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/fleet"
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
	members, _ := f.Members()
	for _, m := range members {
		if m.Gone.IsZero() && m.Instance != h.Instance && stateOf(m).has(rt.cfg.Name) {
			h.Standbys = append(h.Standbys, m.Instance)
		}
	}
	return h
}

// stateOf is what a member says of itself. One that cannot be read says nothing.
func stateOf(m fleet.Member) (s memberState) {
	_ = json.Unmarshal(m.State, &s)
	return s
}

func (s memberState) has(route string) bool { return slices.Contains(s.Routes, route) }

// reads tells whether it would take the route with this durable. An earlier version does not say with which.
func (s memberState) reads(route, durable string) bool {
	of := s.Durables[route]
	return s.has(route) && (of == "" || of == durable)
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
		return RouteStandby, fmt.Sprintf("instance %s has the route; this one takes it when that one ends or does not answer", h.Instance), time.Time{}, true
	}
	return RouteStandby, "no instance has the route yet", time.Time{}, true
}

// noSession is why a route that only one instance may have cannot be had.
func noSession(err error) error {
	return fmt.Errorf("this instance could not renew its lease, so it must not handle this route: %w; retrying", err)
}
