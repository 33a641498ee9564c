package consumer

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

type (
	// Status is what one instance says of itself: what is wrong, its routes and its limits. As JSON it is what the
	// command relay status --json prints of an instance, and most fields are named as there: HeldMessages of a route is held_messages, but Stored is
	// dead_letters.
	Status = control.Status
	// RouteStatus is a route on one instance: its state and why, what it holds, what waits for it and what it did. As JSON it is one of the routes in
	// relay status --json.
	RouteStatus = control.RouteStatus
	// ConfigStatus says which configuration an instance runs. Whoever embeds a [Relay] may say it with [Relay.TellConfig].
	ConfigStatus = control.ConfigStatus
	// ConfigDigest tells settings apart without revealing them.
	ConfigDigest = control.ConfigDigest
)

// Status is a snapshot of this instance. It changes nothing and asks nobody: counts of the server are up to some seconds old.
func (r *Relay) Status() Status { return r.status(control.StatusRequest{}) }

// serveControl has questions of operators answered until stop is called.
func (l *startup) serveControl() (stop func(), err error) {
	s := control.Server{
		Conn: l.nc, Service: l.cfg.Service, Instance: l.cfg.Instance, Resume: l.routes.wake, Handover: l.routes.handover,
		Status: func(q control.StatusRequest) Status {
			l.running.lookAgain()
			return l.status(q)
		},
	}
	return s.Serve()
}

func (r *Relay) status(q control.StatusRequest) Status {
	s := Status{
		Instance: r.cfg.Instance, Service: r.cfg.Service, Version: version.String(), Started: r.phases.since(), Ready: true, Draining: r.running.IsDraining(),
		Parked: r.upkeep.Parked(), Config: r.membership.config.Load(),
	}
	s.OrdersBucket, s.Orders = r.orders.Last()
	s.Notices = r.orders.Unread()
	if u := r.upkeep.Usage(); u != nil {
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
	if r.cfg.Troubles != nil {
		for _, line := range r.cfg.Troubles() {
			s.Trouble = append(s.Trouble, control.Cut(line, control.MaxText))
		}
	}
	for _, line := range r.upkeep.Troubles() {
		s.Trouble = append(s.Trouble, control.Cut(line, control.MaxText))
	}
	for _, o := range r.orphans.Found() {
		s.Trouble = append(s.Trouble, o.String())
	}
	for _, src := range r.running.Sources() {
		if text := src.Unwanted.Trouble(); text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	s.Limits, s.Gone = r.limits.Status(), peers.Gone(r.membership.Now())
	s.Routes = r.divided.status(q)
	return s
}

// status of all routes, those with partitions from the status of their parts.
func (l *dividedRoutes) status(q control.StatusRequest) (list []RouteStatus) {
	parts, at := make(map[string][]RouteStatus), make(map[string]int)
	routes, ended := l.relay.routes.counting()
	for _, rt := range routes {
		name := rt.name()
		if q.Route != "" && q.Route != name {
			continue
		}
		told := rt.status(q.Most())
		told.KeyKnown = q.Key != nil && rt.group.Knows(*q.Key)
		if rt.cfg.part != nil {
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
			s := d.Together(told, q.Most(), d.Status(peers.Holds(l.relay.membership.Now(), d.Newest().Generation)))
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

func (rt *route) status(keys int) RouteStatus {
	g := rt.group.Status()
	state, why, since := rt.standstill.condition(g)
	s := RouteStatus{
		Name: rt.name(), Durable: rt.cfg.Durable, Subjects: rt.cfg.Subjects, Key: rt.cfg.Key, Order: string(rt.cfg.Order), State: state, Why: control.Cut(why, control.MaxText), Since: known(since),
		Running: g.Running + rt.standstill.successor.running(), Former: rt.group.Former() + rt.standstill.successor.running(), Stuck: g.Stuck, Window: g.Window, Stash: g.StashMessages, Aside: g.Aside, Keys: map[string]int{},
		Callers: rt.callersStatus(), Fallback: rt.fallbackStatus(), Holder: rt.holder(),
		Acked: rt.count.Acked(), Retried: rt.count.Retried(), Dead: rt.count.DeadLetters(),
		Backlog: rt.backlog(), CatchUp: rt.catchUp(),
	}
	if c := rt.relay.membership.config.Load(); c != nil {
		if d, told := c.Routes[rt.name()]; told {
			s.Config = &d
		}
	}
	holds := rt.memory.Holds()
	s.HeldMessages, s.HeldBytes, s.HeldBytesLimit = holds.Messages, holds.Bytes, rt.memory.Most().Bytes
	if (state == RouteWaiting || state == RouteStopped) && g.State == supervise.Waiting || state == RouteSuspended {
		s.Until = known(g.Until)
	}
	if own := rt.ownLimit(); own != nil && state == RouteLimited {
		if l := own.Status(); l.Left == 0 {
			s.Until = known(l.Until)
		}
	}
	s.Pause = rt.standstill.paused.Order()
	if n, known := rt.relay.upkeep.Dead(rt.name()); known {
		s.Stored = &n
	}
	s.Stream = rt.cfg.Stream
	if u := rt.unit.Load(); u != nil {
		s.Stream = u.main.Stream // also while it is not open
	}
	for _, src := range rt.relay.running.Sources() {
		if src.Serves(&rt.source) && !src.Due {
			if until := src.Health.PausedUntil(); !until.IsZero() && state == RoutePaused && s.Pause == nil {
				s.Until = &until
			}
			s.Stream = src.Stream
			if b := s.Backlog; b == nil || b.Stream > 0 || b.Outstanding > 0 {
				s.Again = src.Setup.Again
			}
			if s.Why == "" && src.Unwanted.IsEmpty(rt.cfg.Name) {
				s.Why = "nothing can arrive: stream " + src.Stream + " holds none of its subjects"
			}
		}
	}
	for state, n := range g.Keys {
		if n > 0 {
			s.Keys[state.String()] = n
		}
	}
	for _, k := range rt.group.KeyStates(keys) {
		ks := control.KeyStatus{
			Key: control.Cut(k.Key, control.MaxKey), State: k.State.String(), Why: control.Cut(k.Why, control.MaxText), Since: k.Since, Stash: k.Stash, Failures: k.Failures,
			Restarts: k.Restarts, Error: control.Cut(settle.ErrorText(k.LastErr), control.MaxText), Child: k.Child,
		}
		if len(k.Key) > control.MaxKey {
			ks.KeyBytes = len(k.Key)
		}
		if k.Limit != "" {
			ks.State = RouteLimited
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
