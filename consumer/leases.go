package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/version"
)

// Fleet says how the instances of a service know of each other.
type Fleet struct {
	// Lease is after what time without a confirmed write an instance has lost what only one may have: whole seconds. Zero means 2s; below
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

// grid is this instance's part in the fleet. It has one only once a route needs it: a session costs two writes a second. It is joined beside
// the routes, so that without the bucket only those wait that need it.
type grid struct {
	r      *Relay
	wanted chan struct{} // closed once something needs a session
	want   sync.Once
	joined chan struct{} // closed when fleet is there
	fleet  atomic.Pointer[fleet.Fleet]

	mu      sync.Mutex
	trouble error // why it could not be joined
	since   time.Time
}

func newGrid(r *Relay) *grid {
	return &grid{r: r, wanted: make(chan struct{}), joined: make(chan struct{})}
}

// need has the instance join the fleet if it has not.
func (g *grid) need() { g.want.Do(func() { close(g.wanted) }) }

func (g *grid) needed() bool {
	select {
	case <-g.wanted:
		return true
	default:
		return false
	}
}

// now is the fleet, or nil: nothing needs it, or it could not be joined yet.
func (g *grid) now() *fleet.Fleet { return g.fleet.Load() }

// await returns the fleet when it is joined, or nil when ctx is done first.
func (g *grid) await(ctx context.Context) *fleet.Fleet {
	select {
	case <-g.joined:
		return g.now()
	case <-ctx.Done():
		return nil
	}
}

// reason says why this instance can hold nothing, and since when; nil when it can, or when nothing needs that.
func (g *grid) reason() (since time.Time, err error) {
	if f := g.now(); f != nil {
		return f.Trouble()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.since, g.trouble
}

// run keeps a session until ctx is done, once something needs it.
func (g *grid) run(ctx context.Context) {
	select {
	case <-g.wanted:
	case <-ctx.Done():
		return
	}
	for p := new(away.Patience); ; {
		f, err := g.join(ctx)
		if err == nil {
			g.fleet.Store(f)
			g.mu.Lock()
			g.trouble = nil
			g.mu.Unlock()
			close(g.joined)
			f.Run(ctx)
			return
		}
		if ctx.Err() != nil {
			return
		}
		g.mu.Lock()
		if g.trouble == nil {
			g.since = time.Now()
		}
		g.trouble = err
		g.mu.Unlock()
		most := lookAgain
		if away.Is(err) {
			most = tryAgain
		}
		pause(ctx, p.Next(most))
	}
}

func (g *grid) join(ctx context.Context) (f *fleet.Fleet, err error) {
	r := g.r
	err = r.attempt(ctx, func(ctx context.Context) (err error) {
		if f, err = fleet.Join(ctx, r.js, fleet.Config{
			Service: r.cfg.Service, Domain: r.cfg.Domain, Replicas: r.cfg.Replicas, Instance: r.cfg.Instance, Version: version.String(),
			Lease: r.cfg.Fleet.Lease, State: g.state, Logger: r.log,
		}); err != nil || r.cfg.Domain != "" {
			return err
		}
		// A write that is not permitted is a time-out to who writes.
		r.probing.Lock()
		defer r.probing.Unlock()
		return r.permitted(ctx, &nats.Msg{
			Subject: "$KV." + fleet.Bucket(r.cfg.Service) + ".preflight", Header: nats.Header{nats.ExpectedStreamHdr: {"-"}}, Reply: r.nc.NewInbox(),
		})
	})
	return f, err
}

// memberState is what an instance tells the others with its session.
type memberState struct {
	Generation int    `json:"generation,omitempty"`
	Config     string `json:"config,omitempty"` // hash
	Draining   bool   `json:"draining,omitempty"`
	// Routes of one instance at a time that this one would take.
	Routes []string `json:"routes,omitempty"`
	// Durables of them, by route.
	Durables map[string]string `json:"durables,omitempty"`
	// Generations are those that it works on, of routes with partitions.
	Generations map[string]generations `json:"generations,omitempty"`
}

func (g *grid) state() json.RawMessage {
	s := memberState{Durables: map[string]string{}, Draining: g.r.isDraining()}
	if c := g.r.config.Load(); c != nil {
		s.Generation, s.Config = c.Generation, c.Hash
	}
	for _, rt := range g.r.all() {
		if rt.cfg.Leased() {
			s.Routes = append(s.Routes, rt.cfg.Name)
			s.Durables[rt.cfg.Name] = rt.cfg.Durable
		}
	}
	for _, d := range g.r.divided.all() {
		if s.Generations == nil {
			s.Generations = make(map[string]generations)
		}
		s.Generations[d.head.Name] = generations{d.streams[0].Number, d.newest().Number}
	}
	slices.Sort(s.Routes)
	data, _ := json.Marshal(s)
	return data
}
