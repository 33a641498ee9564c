package engine

import (
	"fmt"
	"strings"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/control"
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

// Status is what this instance says of itself.
func (r *Engine) Status(q control.StatusRequest) control.Status {
	s := control.Status{
		Instance: r.Config.Instance, Service: r.Config.Service, Version: version.String(), Started: r.Phases.Since(), Ready: true, Draining: r.Running.IsDraining(),
		Parked: r.Upkeep.Parked(), Config: r.ConfigStatus.Load(),
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
	s.Limits, s.Gone = r.Bounds.Status(), peers.Gone(r.Membership.Now())
	s.Routes = r.Divided.status(q)
	return s
}

// status of all routes, those with partitions from the status of their parts.
func (l *dividedRoutes) status(q control.StatusRequest) (list []control.RouteStatus) {
	parts, at := make(map[string][]control.RouteStatus), make(map[string]int)
	routes, ended := l.engine.Routes.counting()
	for _, rt := range routes {
		name := rt.Name()
		if q.Route != "" && q.Route != name {
			continue
		}
		told := rt.Status(q.Most())
		told.KeyKnown = q.Key != nil && rt.Group.Knows(*q.Key)
		if rt.Spec.Part != nil {
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
			s := d.Together(told, q.Most(), d.Status(peers.Holds(l.engine.Membership.Now(), d.Newest().Generation)))
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
