package engine

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/version"
)

// member is this instance as one of the fleet, with what it tells the others.
type member struct {
	*fleet.Membership
	home    *route.Home
	routes  *routeList
	running *running
	divided *dividedRoutes
}

func newMember(r *Engine) *member {
	m := &member{home: r.Home, routes: &r.Routes, running: r.Running, divided: r.Divided}
	how := fleet.Config{
		Service: r.Config.Service, Domain: r.Config.Domain, Replicas: r.Config.Replicas, Instance: r.Config.Instance, Version: version.String(),
		Lease: r.Config.Lease, State: m.state, Logger: r.Log,
	}
	m.Membership = fleet.NewMembership(func(ctx context.Context) (f *fleet.Fleet, err error) {
		err = r.attempt(ctx, func(ctx context.Context) (err error) {
			if f, err = fleet.Join(ctx, r.JS, how); err != nil || r.Config.Domain != "" {
				return err
			}
			// A write that is not permitted is a time-out to who writes.
			return r.prober.Permitted(ctx, &nats.Msg{
				Subject: "$KV." + fleet.Bucket(r.Config.Service) + ".preflight", Header: nats.Header{nats.ExpectedStreamHdr: {"-"}}, Reply: r.Conn.NewInbox(),
			})
		})
		return f, err
	})
	return m
}

// state is what this instance tells the others with its session.
func (m *member) state() json.RawMessage {
	s := peers.State{Durables: map[string]string{}, Generations: map[string]peers.Generations{}, Draining: m.running.IsDraining()}
	if c := m.home.ConfigStatus.Load(); c != nil {
		s.Generation, s.Config = c.Generation, c.Hash
	}
	for _, rt := range m.routes.All() {
		if rt.Spec.Leased() {
			s.Routes = append(s.Routes, rt.Spec.Name)
			s.Durables[rt.Spec.Name] = rt.Spec.Durable
		}
	}
	for _, g := range m.divided.Generations() {
		s.Generations[g.Name] = toTell(g)
	}
	slices.Sort(s.Routes)
	data, _ := json.Marshal(s)
	return data
}
