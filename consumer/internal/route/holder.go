package route

import (
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/control"
)

// holder says who has the route; nil: all instances do.
func (rt *Route) Holder() *control.HolderStatus {
	if !rt.Spec.Leased() {
		return nil
	}
	h := new(control.HolderStatus)
	p := rt.Place.Load()
	if p == nil {
		return h
	}
	*h = p.Tenure.Holder()
	for m, s := range peers.Here(rt.Home.Fleet.Now()) {
		if m.Instance != h.Instance && s.Has(rt.Spec.Name) {
			h.Standbys = append(h.Standbys, m.Instance)
		}
	}
	return h
}

// standing says that nothing starts here because another instance has the route, or because nobody can.
func (st *Standstill) standing() (state, why string, since time.Time, yes bool) {
	if p := st.Place.Load(); p != nil && st.Spec.Leased() {
		return p.Tenure.Standing()
	}
	return "", "", time.Time{}, false
}
