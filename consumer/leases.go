package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/version"
)

// Fleet says how the instances of a service learn of each other.
type Fleet struct {
	// Lease is how long an instance keeps what only one instance may have, without a confirmed write: whole seconds. Zero means 2s; less
	// is an error.
	Lease time.Duration `koanf:"lease"`
}

// Validate returns what is wrong with it.
func (f Fleet) Validate() error {
	if f.Lease != 0 && (f.Lease < fleet.MinLease || f.Lease%time.Second != 0) {
		return fmt.Errorf("lease: must be whole seconds, at least %v (got %v)", fleet.MinLease, f.Lease)
	}
	return nil
}

// member is this instance as one of the fleet, with what it tells the others.
type member struct {
	*fleet.Membership
	config  atomic.Pointer[ConfigStatus] // that it runs, as the program said
	routes  *routeList
	running *running
	divided *dividedRoutes
}

func newMember(r *Relay) *member {
	m := &member{routes: &r.routes, running: r.running, divided: r.divided}
	how := fleet.Config{
		Service: r.cfg.Service, Domain: r.cfg.Domain, Replicas: r.cfg.Replicas, Instance: r.cfg.Instance, Version: version.String(),
		Lease: r.cfg.Fleet.Lease, State: m.state, Logger: r.log,
	}
	m.Membership = fleet.NewMembership(func(ctx context.Context) (f *fleet.Fleet, err error) {
		err = r.attempt(ctx, func(ctx context.Context) (err error) {
			if f, err = fleet.Join(ctx, r.js, how); err != nil || r.cfg.Domain != "" {
				return err
			}
			// A write that is not permitted is a time-out to who writes.
			return r.prober.Permitted(ctx, &nats.Msg{
				Subject: "$KV." + fleet.Bucket(r.cfg.Service) + ".preflight", Header: nats.Header{nats.ExpectedStreamHdr: {"-"}}, Reply: r.nc.NewInbox(),
			})
		})
		return f, err
	})
	return m
}

// state is what this instance tells the others with its session.
func (m *member) state() json.RawMessage {
	s := peers.State{Durables: map[string]string{}, Generations: map[string]peers.Generations{}, Draining: m.running.IsDraining()}
	if c := m.config.Load(); c != nil {
		s.Generation, s.Config = c.Generation, c.Hash
	}
	for _, rt := range m.routes.all() {
		if rt.cfg.Leased() {
			s.Routes = append(s.Routes, rt.cfg.Name)
			s.Durables[rt.cfg.Name] = rt.cfg.Durable
		}
	}
	for _, g := range m.divided.Generations() {
		s.Generations[g.Name] = toTell(g)
	}
	slices.Sort(s.Routes)
	data, _ := json.Marshal(s)
	return data
}

// lease is how long one lasts.
func (f Fleet) lease() time.Duration { return max(f.Lease, fleet.MinLease) }
