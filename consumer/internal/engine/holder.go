package engine

import (
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/control"
)

// holder says who has the route; nil: all instances do.
func (rt *Route) holder() *control.HolderStatus {
	if !rt.Spec.Leased() {
		return nil
	}
	h := new(control.HolderStatus)
	u := rt.Unit.Load()
	if u == nil {
		return h
	}
	*h = u.tenure.Holder()
	for m, s := range peers.Here(rt.Engine.Membership.Now()) {
		if m.Instance != h.Instance && s.Has(rt.Spec.Name) {
			h.Standbys = append(h.Standbys, m.Instance)
		}
	}
	return h
}

// standing says that nothing starts here because another instance has the route, or because nobody can.
func (st *standstill) standing() (state, why string, since time.Time, yes bool) {
	if u := st.Unit.Load(); u != nil && st.Spec.Leased() {
		return u.tenure.Standing()
	}
	return "", "", time.Time{}, false
}
