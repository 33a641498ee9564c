package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/version"
)

// serveControl has questions of operators answered until stop is called.
func (l *startup) serveControl() (stop func(), err error) {
	s := control.Server{
		Conn: l.Conn, Service: l.Config.Service, Instance: l.Config.Instance, Resume: l.Routes.wake, Handover: l.Routes.handover,
		Status: func(q control.StatusRequest) control.Status {
			l.Running.lookAgain()
			return l.Status(q)
		},
	}
	return s.Serve()
}

func (r *Engine) Status(q control.StatusRequest) control.Status {
	s := control.Status{
		Instance: r.Config.Instance, Service: r.Config.Service, Version: version.String(), Started: r.Phases.since(), Ready: true, Draining: r.Running.IsDraining(),
		Parked: r.Upkeep.Parked(), Config: r.Membership.config.Load(),
	}
	s.OrdersBucket, s.Orders = r.orders.Last()
	s.Notices = r.orders.Unread()
	if u := r.Upkeep.Usage(); u != nil {
		s.Stored = u.Entries
	}
	if err := r.Ready(); err != nil {
		s.Ready = false
		for _, line := range strings.Split(err.Error(), "\n") {
			s.Trouble = append(s.Trouble, control.Cut(line, control.MaxText))
		}
		if n := len(s.Trouble) - control.MaxTroubles; n > 0 {
			s.Trouble = append(s.Trouble[:control.MaxTroubles], fmt.Sprintf("and %d more", n))
		}
	}
	if r.Config.Troubles != nil {
		for _, line := range r.Config.Troubles() {
			s.Trouble = append(s.Trouble, control.Cut(line, control.MaxText))
		}
	}
	for _, line := range r.Upkeep.Troubles() {
		s.Trouble = append(s.Trouble, control.Cut(line, control.MaxText))
	}
	for _, o := range r.Orphans.Found() {
		s.Trouble = append(s.Trouble, o.String())
	}
	for _, src := range r.Running.Sources() {
		if text := src.Unwanted.Trouble(); text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	s.Limits, s.Gone = r.limits.Status(), peers.Gone(r.Membership.Now())
	s.Routes = r.Divided.status(q)
	return s
}

// status of all routes, those with partitions from the status of their parts.
func (l *dividedRoutes) status(q control.StatusRequest) (list []control.RouteStatus) {
	parts, at := make(map[string][]control.RouteStatus), make(map[string]int)
	routes, ended := l.relay.Routes.counting()
	for _, rt := range routes {
		name := rt.name()
		if q.Route != "" && q.Route != name {
			continue
		}
		told := rt.status(q.Most())
		told.KeyKnown = q.Key != nil && rt.Group.Knows(*q.Key)
		if rt.Spec.part != nil {
			parts[name] = append(parts[name], told)
			if len(parts[name]) > 1 {
				continue
			}
			at[name] = len(list)
		}
		list = append(list, told)
	}
	for name, told := range parts {
		if d := l.Get(name); d != nil {
			s := d.Together(told, q.Most(), d.Status(peers.Holds(l.relay.Membership.Now(), d.Newest().Generation)))
			s.Durable, s.Subjects = d.Head.Durable, d.Head.Subjects
			list[at[name]] = s
		}
	}
	for i := range list {
		s := &list[i]
		for _, c := range ended[s.Name] {
			s.Acked, s.Retried, s.Dead = s.Acked+c.Acked(), s.Retried+c.Retried(), s.Dead+c.DeadLetters()
		}
	}
	return list
}

func (rt *Route) status(keys int) control.RouteStatus {
	g := rt.Group.Status()
	state, why, since := rt.Standstill.condition(g)
	s := control.RouteStatus{
		Name: rt.name(), Durable: rt.Spec.Durable, Subjects: rt.Spec.Subjects, Key: rt.Spec.Key, Order: string(rt.Spec.Order), State: state, Why: control.Cut(why, control.MaxText), Since: known(since),
		Running: g.Running + rt.Standstill.successor.running(), Former: rt.Group.Former() + rt.Standstill.successor.running(), Stuck: g.Stuck, Window: g.Window, Stash: g.StashMessages, Aside: g.Aside, Keys: map[string]int{},
		Callers: rt.CallersStatus(), Fallback: rt.fallbackStatus(), Holder: rt.holder(),
		Acked: rt.Count.Acked(), Retried: rt.Count.Retried(), Dead: rt.Count.DeadLetters(),
		Backlog: rt.backlog(), CatchUp: rt.CatchUp(),
	}
	if c := rt.Engine.Membership.config.Load(); c != nil {
		if d, told := c.Routes[rt.name()]; told {
			s.Config = &d
		}
	}
	holds := rt.Memory.Holds()
	s.HeldMessages, s.HeldBytes, s.HeldBytesLimit = holds.Messages, holds.Bytes, rt.Memory.Most().Bytes
	if (state == control.StateWaiting || state == control.StateStopped) && g.State == supervise.Waiting || state == control.StateSuspended {
		s.Until = known(g.Until)
	}
	if own := rt.ownLimit(); own != nil && state == control.StateLimited {
		if l := own.Status(); l.Left == 0 {
			s.Until = known(l.Until)
		}
	}
	s.Pause = rt.Standstill.paused.Order()
	if n, known := rt.Engine.Upkeep.Dead(rt.name()); known {
		s.Stored = &n
	}
	s.Stream = rt.Spec.Stream
	if u := rt.Unit.Load(); u != nil {
		s.Stream = u.Main.Stream // also while it is not open
	}
	for _, src := range rt.Engine.Running.Sources() {
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

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
