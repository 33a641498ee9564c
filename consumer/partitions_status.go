package consumer

import (
	"fmt"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/control"
)

func (r *Relay) partitionsStatus(d *divided) *control.PartitionsStatus {
	newest := d.Newest()
	s := &control.PartitionsStatus{Count: newest.Count, Generation: newest.Number, Stream: newest.Name()}
	for _, former := range d.Streams[:len(d.Streams)-1] {
		s.HandingOver = append(s.HandingOver, former.Number)
	}
	if n := d.Behind(); n >= 0 {
		s.Behind = new(uint64(n))
	}
	f := r.membership.Now()
	for n := range newest.Count {
		if f == nil {
			s.Nobody = append(s.Nobody, n)
		} else if h, ok := f.Holder(peers.Resource(newest.Name(), newest.DurableOf(n))); !ok {
			s.Nobody = append(s.Nobody, n)
		} else if h.Mine {
			s.Here = append(s.Here, n)
		}
	}
	return s
}

// statusTogether is the status of a route with partitions, from those of its parts.
func (r *Relay) statusTogether(d *divided, parts []RouteStatus, keys int) RouteStatus {
	s := control.Together(parts, keys)
	s.Partitions = r.partitionsStatus(d)
	s.Stream, s.Durable, s.Subjects, s.Holder = d.Newest().Layout.Stream, d.head.Durable, d.head.Subjects, nil
	if s.State == RouteStandby && s.Why != "" {
		s.Why = "other instances have its partitions"
		if len(s.Partitions.Nobody) > 0 {
			s.Why = "no instance has its partitions yet"
		}
	}
	if n := len(s.Partitions.HandingOver); n > 0 && (s.State == RouteFlowing || s.State == RouteStandby) {
		s.Why = fmt.Sprintf("the route changes to %d partitions; messages that wait in the former ones are handed over first", s.Partitions.Count)
	}
	return s
}

// status of all routes, each with its parts.
func (r *Relay) routesStatus(q control.StatusRequest) (list []RouteStatus) {
	parts := make(map[string][]RouteStatus)
	at := make(map[string]int)
	routes, ended := r.counting()
	for _, rt := range routes {
		name := rt.name()
		if q.Route != "" && q.Route != name {
			continue
		}
		told := rt.status(q.Most())
		told.KeyKnown = q.Key != nil && rt.group.Knows(*q.Key)
		if rt.cfg.part != nil {
			if parts[name] == nil {
				at[name] = len(list)
				list = append(list, told)
			}
			parts[name] = append(parts[name], told)
			continue
		}
		list = append(list, told)
	}
	for name, told := range parts {
		if d := r.divided.get(name); d != nil {
			list[at[name]] = r.statusTogether(d, told, q.Most())
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
