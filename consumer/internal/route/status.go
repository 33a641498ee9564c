package route

import (
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
)

// Status is what the instance says of the route, with so many of its keys that do not flow.
func (rt *Route) Status(keys int) control.RouteStatus {
	g := rt.Group.Status()
	state, why, since := rt.Standstill.Condition(g)
	s := control.RouteStatus{
		Name: rt.Name(), Durable: rt.Spec.Durable, Subjects: rt.Spec.Subjects, Key: rt.Spec.Key, Order: string(rt.Spec.Order), State: state, Why: control.Cut(why, control.MaxText), Since: known(since),
		Running: g.Running + rt.Standstill.Successor.running(), Former: rt.Group.Former() + rt.Standstill.Successor.running(), Stuck: g.Stuck, Window: g.Window, Stash: g.StashMessages, Aside: g.Aside, Keys: map[string]int{},
		Callers: rt.CallersStatus(), Fallback: rt.fallbackStatus(), Holder: rt.Holder(),
		Acked: rt.Count.Acked(), Retried: rt.Count.Retried(), Dead: rt.Count.DeadLetters(),
		Backlog: rt.Backlog(), CatchUp: rt.CatchUp(),
	}
	if c := rt.Home.ConfigStatus.Load(); c != nil {
		if d, told := c.Routes[rt.Name()]; told {
			s.Config = &d
		}
	}
	holds := rt.Memory.Holds()
	s.HeldMessages, s.HeldBytes, s.HeldBytesLimit = holds.Messages, holds.Bytes, rt.Memory.Most().Bytes
	if (state == control.StateWaiting || state == control.StateStopped) && g.State == supervise.Waiting || state == control.StateSuspended {
		s.Until = known(g.Until)
	}
	if own := rt.OwnLimit(); own != nil && state == control.StateLimited {
		if l := own.Status(); l.Left == 0 {
			s.Until = known(l.Until)
		}
	}
	s.Pause = rt.Standstill.paused.Order()
	if n, known := rt.Home.Upkeep.Dead(rt.Name()); known {
		s.Stored = &n
	}
	s.Stream = rt.Spec.Stream
	if p := rt.Place.Load(); p != nil {
		s.Stream = p.Main.Stream // also while it is not open
	}
	for _, src := range rt.Home.OpenSources() {
		if src.Serves(&rt.Source) && !src.Due {
			if until := src.Health.PausedUntil(); !until.IsZero() && state == control.StatePaused && s.Pause == nil {
				s.Until = &until
			}
			s.Stream = src.Stream
			if b := s.Backlog; b == nil || b.Stream > 0 || b.Outstanding > 0 {
				s.Again = src.Setup.Again
			}
			if s.Why == "" && src.Unwanted.IsEmpty(rt.Spec.Name) {
				s.Why = "nothing can arrive: stream " + src.Stream + " holds none of its subjects"
			}
		}
	}
	for state, n := range g.Keys {
		if n > 0 {
			s.Keys[state.String()] = n
		}
	}
	for _, k := range rt.Group.KeyStates(keys) {
		ks := control.KeyStatus{
			Key: control.Cut(k.Key, control.MaxKey), State: k.State.String(), Why: control.Cut(k.Why, control.MaxText), Since: k.Since, Stash: k.Stash, Failures: k.Failures,
			Restarts: k.Restarts, Error: control.Cut(settle.ErrorText(k.LastErr), control.MaxText), Child: k.Child,
		}
		if len(k.Key) > control.MaxKey {
			ks.KeyBytes = len(k.Key)
		}
		if k.Limit != "" {
			ks.State = control.StateLimited
		}
		if k.State == supervise.Waiting {
			ks.Until = known(k.Until)
		}
		s.Waiting = append(s.Waiting, ks)
	}
	s.WaitingMore = max(0, g.NotFlowing-len(s.Waiting))
	return s
}

// known is nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Holder says who has the route; nil: all instances do.
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
