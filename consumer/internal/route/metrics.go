package route

import "github.com/relaymq/relay/consumer/internal/metrics"

func (rt *Route) Snapshot() metrics.Route {
	s := metrics.Route{
		Name: rt.Name(), Count: &rt.Count.RouteCount, Group: rt.Group.Status(), Holds: rt.Memory.Holds(), HeldMost: rt.Memory.Most().Bytes,
		CatchUp: rt.CatchUp().Left(), Limits: rt.Spec.bounding().Names(), Backlog: rt.Backlog(),
	}
	s.Fallback, _ = rt.Group.Fallback()
	s.State, _, _ = rt.Standstill.Condition(s.Group)
	if h := rt.Holder(); h != nil {
		s.Here = &h.Here
	}
	if at, known := rt.Oldest(); known {
		s.Oldest = &at
	}
	if rt.Spec.IsCopy() {
		return s
	}
	if n := rt.Home.Behind(s.Name); n >= 0 {
		s.Behind = new(int(n))
	}
	if n, known := rt.Home.Upkeep.Dead(s.Name); known {
		s.Dead = &n
	}
	return s
}
